"""Images: root file systems by reference. `ImageStore` imports them, unpacks their layers once, and shares them."""

from warmcell.core.errors import ImageInvalid, ImageNotFound
from warmcell.images.limits import ImageLimits
from warmcell.images.model import Image, ImageConfig
from warmcell.images.store import ImageLease, ImageStore

__all__ = ["Image", "ImageConfig", "ImageInvalid", "ImageLease", "ImageLimits", "ImageNotFound", "ImageStore"]
