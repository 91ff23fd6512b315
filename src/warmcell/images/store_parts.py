"""StoreParts: the parts of a store, for code that adds images by itself."""

from __future__ import annotations

from warmcell.core.records import dataclass
from warmcell.images.blobs import BlobStore
from warmcell.images.layers import LayerStore
from warmcell.images.limits import ImageLimits
from warmcell.images.records import Records


@dataclass(frozen=True, slots=True)
class StoreParts:
    """Use them only while the store's lock for adding is held."""

    path: str
    blobs: BlobStore
    layers: LayerStore
    records: Records
    limits: ImageLimits
