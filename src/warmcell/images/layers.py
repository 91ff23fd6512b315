"""LayerStore: unpacked layers, each a directory named by the digest of its tar. Complete, or absent."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from warmcell.core.errors import ImageInvalid
from warmcell.core.records import dataclass
from warmcell.images.blobs import hex_of
from warmcell.images.decompress import LayerReader, decompress
from warmcell.images.limits import Budget
from warmcell.images.merge import MergingUnpacker
from warmcell.images.progress import ImageProgress, OnProgress
from warmcell.images.references import is_digest
from warmcell.images.unpack import Owners, Unpacker
from warmcell.lifetime.held_directories import UNFINISHED_LAYERS, create_held_directory, hold
from warmcell.lifetime.own_modes import grant_owner, make_directories
from warmcell.workspace.remove import remove_directory

_TREE, _RECORD, _OWNERS = "tree", "layer.json", "owners.json"


@dataclass(frozen=True, slots=True)
class LayerSource:
    """A layer to unpack: its blob, compressed or not, and whether whiteouts remove what is below it."""

    diff_id: str
    open: Callable[[], IO[bytes]]
    size: int
    is_merged: bool = False


class LayerStore:
    """The layers of a store. A layer never changes once it has its name."""

    def __init__(self, path: str) -> None:
        self.path = path

    def tree(self, diff_id: str) -> str:
        """The directory to mount."""
        return os.path.join(self.path, hex_of(diff_id), _TREE)

    def has(self, diff_id: str) -> bool:
        return os.path.isfile(os.path.join(self.path, hex_of(diff_id), _RECORD))

    def digests(self) -> list[str]:
        """Every layer, by diff id."""
        names = os.listdir(self.path) if os.path.isdir(self.path) else []
        return [digest for name in names if is_digest(digest := f"sha256:{name}")]

    def remove(self, diff_id: str) -> None:
        """Remove a layer that no image has. Interrupted, it leaves an unfinished layer for the next `prune`."""
        held = hold(os.path.join(self.path, hex_of(diff_id)))
        if held is None:
            return  # another thread is about to finish with it
        try:
            path = os.path.join(self.path, UNFINISHED_LAYERS[0] + hex_of(diff_id))
            os.rename(held.path, path)
            remove_directory(path)
        finally:
            held.let_go()

    def size(self, diff_id: str) -> int:
        """The bytes of the uncompressed layer."""
        return int(self._read(diff_id, _RECORD)["size"])

    def owners(self, diff_id: str) -> dict[str, tuple[int, int, int]]:
        """Uid, gid and mode of the entries whose files could not have them, by path."""
        return {path: tuple(owner) for path, owner in self._read(diff_id, _OWNERS).items()}

    def add(self, layers: Sequence[LayerSource], budget: Budget, on_progress: OnProgress | None = None) -> str:
        """Unpack a layer, or several on top of each other into one directory; returns the id of the result.

        Nothing happens if it is there already. Several programs may unpack the same one; the first wins.
        """
        result = chain_id([layer.diff_id for layer in layers])
        if self.has(result):
            return result
        make_directories(self.path)
        held = create_held_directory(UNFINISHED_LAYERS[0], self.path)
        try:
            self._unpack(held.path, layers, budget, on_progress)
            self._publish(held.path, result)
        finally:
            remove_directory(held.path)  # gone, if it was published
            held.let_go()
        return result

    def _unpack(self, path: str, layers: Sequence[LayerSource], budget: Budget, on_progress: OnProgress | None) -> None:
        tree = os.path.join(path, _TREE)
        os.mkdir(tree)
        os.chmod(tree, 0o755)  # whatever the umask
        owners: Owners = {}
        size = 0
        for layer in layers:
            with layer.open() as blob:
                reader = LayerReader(_report_unpacking(blob, layer, on_progress), budget, layer.size)
                unpacker = (MergingUnpacker if layer.is_merged else Unpacker)(tree, budget)
                owners |= unpacker.unpack(reader)
                _check_digest(reader.finish(), layer.diff_id)
                size += reader.size
        _write(os.path.join(path, _OWNERS), owners)
        _write(os.path.join(path, _RECORD), {"size": size})

    def _publish(self, path: str, diff_id: str) -> None:
        try:
            os.rename(path, os.path.join(self.path, hex_of(diff_id)))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _read(self, diff_id: str, name: str) -> Any:
        try:
            with open(os.path.join(self.path, hex_of(diff_id), name), "rb") as file:
                return json.load(file)
        except FileNotFoundError:
            raise ImageInvalid(
                f"the store has lost the layer {diff_id}", hint="import or pull the image again"
            ) from None


def chain_id(diff_ids: Sequence[str]) -> str:
    """The identity of layers on top of each other, as OCI defines it; that of one layer is its own."""
    result = diff_ids[0]
    for diff_id in diff_ids[1:]:
        result = f"sha256:{hashlib.sha256(f'{result} {diff_id}'.encode()).hexdigest()}"
    return result


def distinct_layers(layers: Sequence[str]) -> tuple[str, ...]:
    """Without the lower ones of equal layers, which the upper one hides: overlayfs refuses the same directory twice."""
    return tuple(reversed(dict.fromkeys(reversed(layers))))


def _check_digest(found: str, stated: str) -> None:
    if found != stated:
        raise ImageInvalid(f"a layer's content has the digest {found}; the configuration states {stated}")


def _report_unpacking(blob: IO[bytes], layer: LayerSource, on_progress: OnProgress | None) -> Iterator[bytes]:
    for chunk in decompress(blob):
        if on_progress is not None:
            on_progress(ImageProgress("unpack", layer.diff_id, blob.tell(), layer.size))
        yield chunk


def _write(path: str, document: Any) -> None:
    with open(path, "x", encoding="ascii") as file:
        grant_owner(file.fileno())
        json.dump(document, file)
