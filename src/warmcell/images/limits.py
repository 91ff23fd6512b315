"""Bounds on everything that the author of an image controls. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from warmcell.core.errors import ImageInvalid
from warmcell.core.records import dataclass
from warmcell.core.types import MIB

#: A manifest, an index or a configuration. Registries accept manifests of 4 MiB.
MAX_JSON_BYTES = 8 * MIB
#: overlayfs accepts 500 lower directories; Docker stops at 127 layers.
MAX_LAYERS = 127
#: An index may point to an index; deeper nesting is not used.
MAX_INDEX_DEPTH = 3
#: PATH_MAX and NAME_MAX of Linux.
MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits on one image. An image that exceeds one is discarded.

    `unpacked_bytes`, `entries` and `name_bytes` (the total length of all paths, which are kept in memory, with those of
    parents that no entry lists) count all layers together. `ratio` is the unpacked to the compressed size of one layer,
    checked from `ratio_from_bytes` on.
    """

    unpacked_bytes: int = 64 * 1024 * MIB
    entries: int = 1_000_000
    name_bytes: int = 256 * MIB
    ratio: int = 400
    ratio_from_bytes: int = 256 * MIB


class Budget:
    """Counts what an image uses while it is unpacked, and enforces the limits."""

    def __init__(self, limits: ImageLimits) -> None:
        self.limits = limits
        self._bytes = 0
        self._entries = 0
        self._name_bytes = 0

    def count_entry(self, path: Sequence[bytes] = ()) -> None:
        self._entries += 1
        self._name_bytes += sum(map(len, path)) + len(path)
        if self._name_bytes > self.limits.name_bytes:
            raise ImageInvalid(f"the paths of the image have more than {self.limits.name_bytes} bytes", hint=_HINT)
        if self._entries > self.limits.entries:
            raise ImageInvalid(f"the image has more than {self.limits.entries} entries", hint=_HINT)

    def count_bytes(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self.limits.unpacked_bytes:
            raise ImageInvalid(f"the image unpacks to more than {self.limits.unpacked_bytes} bytes", hint=_HINT)

    def check_ratio(self, unpacked: int, compressed: int) -> None:
        if unpacked > self.limits.ratio_from_bytes and unpacked > self.limits.ratio * max(compressed, 1):
            raise ImageInvalid(f"a layer expands to more than {self.limits.ratio} times its size", hint=_HINT)


_HINT = "if you trust the image, raise the limit: ImageStore(limits=ImageLimits(...))"
