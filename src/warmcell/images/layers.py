"""LayerStore: unpacked layers, each a directory named by its diff id, complete or absent."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from warmcell.core.errors import ImageInvalid
from warmcell.core.light import closing_fd
from warmcell.core.records import dataclass
from warmcell.images.blobs import hex_of
from warmcell.images.decompress import LayerReader, decompress
from warmcell.images.limits import Budget
from warmcell.images.progress import ImageProgress, OnProgress
from warmcell.images.references import is_digest
from warmcell.images.tar_reader import TarEntry
from warmcell.images.unpack import Owners, Path, Unpacker, mode_of
from warmcell.lifetime.held_directories import UNFINISHED_LAYERS, create_held_directory, hold
from warmcell.lifetime.own_modes import grant_owner, make_directories
from warmcell.workspace.remove import remove_directory, remove_trees


class MergingUnpacker(Unpacker):
    """Unpacks a layer onto those below it. Whiteouts delete files of lower layers, never of the layer itself."""

    def __init__(self, directory: str, budget: Budget, owners: Owners | None = None) -> None:
        super().__init__(directory, budget, owners)
        #: Every path of this layer, and their parents.
        self._own: set[Path] = set()
        #: Directories that no longer contain anything of lower layers.
        self._hidden: set[Path] = set()

    def add(self, entry: TarEntry, reader: LayerReader) -> None:
        super().add(entry, reader)
        if not entry.path or not entry.path[-1].startswith(b".wh."):
            self._add_own(entry.path)

    def _add_own(self, path: Path) -> None:
        """Add the path and its parents, up to the first that is known: its own parents are known too."""
        for length in range(len(path), -1, -1):
            if path[:length] in self._own:
                return
            self._own.add(path[:length])

    def hide(self, parent: int, path: Path) -> None:
        if self._remove_lower(parent, path):
            self._hide_below(path)

    def hide_content(self, directory: int, path: Path) -> None:
        self._hide_below(path)

    def _hide_below(self, path: Path) -> None:
        """Visit each directory once: a layer may have any number of whiteouts, and deeply nested directories."""
        waiting = [path]
        while waiting:
            above = waiting.pop()
            if above in self._hidden:
                continue
            self._hidden.add(above)
            with closing_fd(self._open_directory(above)) as directory:
                paths = [(*above, os.fsencode(name)) for name in os.listdir(directory)]
                waiting += [below for below in paths if self._remove_lower(directory, below)]

    def remove_directory(self, parent: int, name: bytes) -> None:
        """A file may replace a lower layer's directory and its content."""
        remove_trees(parent, [os.fsdecode(name)])

    def _remove_lower(self, parent: int, path: Path) -> bool:
        """Remove an entry unless it is this layer's own. Returns whether it is a directory of this layer."""
        mode = mode_of(parent, path[-1])
        if mode is None:
            return False
        if path in self._own:
            return stat.S_ISDIR(mode)
        if stat.S_ISDIR(mode):
            remove_trees(parent, [os.fsdecode(path[-1])])
        else:
            os.unlink(path[-1], dir_fd=parent)
        return False


_TREE, _RECORD, _OWNERS = "tree", "layer.json", "owners.json"


@dataclass(frozen=True, slots=True)
class LayerSource:
    """A layer to unpack. `open` returns its blob, compressed or not; `is_merged`: unpack it onto the layer below."""

    diff_id: str
    open: Callable[[], IO[bytes]]
    size: int
    is_merged: bool = False


class LayerStore:
    """The unpacked layers of a store. A published layer never changes."""

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

    def set_aside(self, diff_id: str) -> None:
        """Take a layer that no image uses out of the store. The next sweep removes its files."""
        held = hold(os.path.join(self.path, hex_of(diff_id)))
        if held is None:
            return  # another thread is still adding it
        with held:
            os.rename(held.path, os.path.join(self.path, UNFINISHED_LAYERS[0] + os.urandom(8).hex()))

    def size(self, diff_id: str) -> int:
        """The bytes of the uncompressed layer. `ImageInvalid` if its record is missing or damaged."""
        size = self._read(diff_id, _RECORD).get("size")
        if not isinstance(size, int):
            raise _invalid_record(diff_id)
        return size

    def owners(self, diff_id: str) -> dict[str, tuple[int, int, int]]:
        """Uid, gid and mode, by path, of entries whose unpacked files have others."""
        return {path: tuple(owner) for path, owner in self._read(diff_id, _OWNERS).items()}

    def add(self, layers: Sequence[LayerSource], budget: Budget, on_progress: OnProgress | None = None) -> str:
        """Unpack a layer, or several merged into one directory, unless the result exists; returns its id.

        Several programs may unpack the same layer at once; the first wins.
        """
        result = chain_id([layer.diff_id for layer in layers])
        if self.has(result):
            return result
        make_directories(self.path)
        with create_held_directory(UNFINISHED_LAYERS[0], self.path) as held:
            try:
                self._unpack(held.path, layers, budget, on_progress)
                self._publish(held.path, result)
            finally:
                remove_directory(held.path)  # gone, if it was published
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
                unpacker = (MergingUnpacker if layer.is_merged else Unpacker)(tree, budget, owners)
                unpacker.unpack(reader)
                found, stated = reader.finish(), layer.diff_id
                if found != stated:
                    raise ImageInvalid(f"a layer's content has the digest {found}; the configuration states {stated}")
                size += reader.size
        _write(os.path.join(path, _OWNERS), owners)
        _write(os.path.join(path, _RECORD), {"size": size})

    def _publish(self, path: str, diff_id: str) -> None:
        try:
            os.rename(path, os.path.join(self.path, hex_of(diff_id)))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _read(self, diff_id: str, name: str) -> dict[str, Any]:
        try:
            with open(os.path.join(self.path, hex_of(diff_id), name), "rb") as file:
                document = json.load(file)
        except FileNotFoundError:
            hint = "import or pull the image again"
            raise ImageInvalid(f"layer {diff_id} is missing from the store", hint=hint) from None
        except ValueError:
            raise _invalid_record(diff_id) from None
        if not isinstance(document, dict):
            raise _invalid_record(diff_id)
        return document


def _invalid_record(diff_id: str) -> ImageInvalid:
    hint = "remove the images that have it, run `warmcell image prune`, and import or pull them again"
    return ImageInvalid(f"layer {diff_id} of the store is damaged", hint=hint)


def chain_id(diff_ids: Sequence[str]) -> str:
    """OCI's chain id: identifies layers stacked on each other. For one layer it is the diff id."""
    result = diff_ids[0]
    for diff_id in diff_ids[1:]:
        result = f"sha256:{hashlib.sha256(f'{result} {diff_id}'.encode()).hexdigest()}"
    return result


def distinct_layers(layers: Sequence[str]) -> tuple[str, ...]:
    """Drop lower duplicates, which the upper one hides: overlayfs refuses the same directory twice."""
    return tuple(reversed(dict.fromkeys(reversed(layers))))


def _report_unpacking(blob: IO[bytes], layer: LayerSource, on_progress: OnProgress | None) -> Iterator[bytes]:
    for chunk in decompress(blob):
        if on_progress is not None:
            on_progress(ImageProgress("unpack", layer.diff_id, blob.tell(), layer.size))
        yield chunk


def _write(path: str, document: Any) -> None:
    with open(path, "x", encoding="ascii") as file:
        grant_owner(file.fileno())
        json.dump(document, file)
