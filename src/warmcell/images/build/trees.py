"""Tree: the files of a build context, image or stage, never read beyond its root. UpperLayer: a step's changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence

from warmcell.core.errors import ImageInvalid
from warmcell.core.light import closing_fd
from warmcell.core.records import dataclass
from warmcell.images.image_files import ImageFiles, is_opaque, topmost
from warmcell.images.layer_tar import Attributes, LayerWriter
from warmcell.images.limits import MAX_PATH_BYTES
from warmcell.workspace import openat2

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
Owners = Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Node:
    """An entry. `path` is relative to the root of the tree; `places` are its host paths, topmost layer first."""

    path: str
    places: tuple[str, ...]
    state: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.state.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.state.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.state.st_mode)


class Tree:
    """Merged layers, lowest first, each with its owners. A context is a tree of one directory."""

    def __init__(self, layers: Sequence[str], owners: Sequence[Owners] = ()) -> None:
        self.files = ImageFiles(layers)
        self._owners = dict(zip(layers, owners, strict=False))

    def find(self, path: str) -> Node | None:
        """The entry at a path. Links are followed within the tree."""
        inside, places = self.files.locate(path)
        return _make_node(inside.strip("/"), places) if places else None

    def child(self, node: Node, name: str) -> Node | None:
        """An entry of a directory, which may be a link."""
        places = topmost(node.places, name)
        return _make_node(f"{node.path}/{name}".lstrip("/"), places) if places else None

    def children(self, node: Node) -> list[Node]:
        """The entries of a directory, by name."""
        names = sorted({name for place in node.places for name in self._list(place, node.path)})
        return [child for name in names if (child := self.child(node, name)) is not None]

    def attributes(self, node: Node) -> Attributes:
        """The owner is the one recorded when the layer was unpacked, else root."""
        state = node.state
        owners = self._owners.get(_root_of(node.places[0], node.path), {})
        uid, gid, mode = owners.get(node.path, (0, 0, stat.S_IMODE(state.st_mode)))
        return Attributes(mode, uid, gid, int(state.st_mtime))

    def open(self, node: Node) -> int:
        """Open a regular file. The kernel refuses links in the path: the context may change meanwhile."""
        descriptor = self._open_beneath(node.places[0], node.path, _OPEN)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ImageInvalid(f"{node.path!r} changed during the build", hint="build it again")
        return descriptor

    def _list(self, place: str, path: str) -> list[str]:
        with closing_fd(self._open_beneath(place, path, _DIRECTORY)) as descriptor:
            return os.listdir(descriptor)

    def _open_beneath(self, place: str, path: str, flags: int) -> int:
        with closing_fd(os.open(_root_of(place, path), os.O_PATH | _DIRECTORY)) as root:
            try:
                return openat2.open_beneath(root, path or ".", flags)
            except OSError as error:
                raise ImageInvalid(f"cannot read {path!r}: {(error.strerror or '').lower()}") from None


def _root_of(place: str, path: str) -> str:
    """The layer's directory: `place` without `path`."""
    return place[: -len(path) - 1] if path else place


def _make_node(path: str, places: Sequence[str]) -> Node | None:
    try:
        return Node(path, tuple(places), os.lstat(places[0]))
    except OSError:  # removed meanwhile
        return None


_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory to walk, and the same directory in lower layers."""

    path: str
    lower: Node | None
    #: Unchanged directories, itself and parents, that are written only if an entry in them is.
    pending: tuple[tuple[str, Attributes], ...] = ()


class UpperLayer:
    """Writes the upper directory of an overlay over `lower` as a layer.

    Overlayfs marks deletions by devices 0:0, and opaque directories by an attribute; both become names of the OCI
    format. The content is the guest's, but all of its processes have ended, and no other user can write there. Changed
    files keep their owners; new ones belong to `owner`. `ignored` are paths that the cage created. Devices, sockets and
    FIFOs are left out.
    """

    def __init__(self, directory: str, lower: Tree, owner: tuple[int, int], ignored: Collection[str] = ()) -> None:
        self._directory, self._lower, self._owner, self._ignored = directory, lower, owner, ignored
        self._written: set[str] = set()

    def write(self, writer: LayerWriter) -> None:
        with closing_fd(os.open(self._directory, _OPEN_DIRECTORY)) as root:
            waiting = [_Directory("", self._lower.find("/"))]
            while waiting:
                # Depth first, in the order of names.
                waiting += reversed(self._write_directory(root, waiting.pop(), writer))

    def _write_directory(self, root: int, directory: _Directory, writer: LayerWriter) -> list[_Directory]:
        """Write its entries; returns its subdirectories."""
        if len(os.fsencode(directory.path)) > MAX_PATH_BYTES:
            raise ImageInvalid(f"the step made directories deeper than {MAX_PATH_BYTES} bytes of path")
        with closing_fd(openat2.open_beneath(root, directory.path or ".", _OPEN_DIRECTORY)) as fd:
            below = []
            for name in sorted(os.listdir(fd)):
                path = f"{directory.path}/{name}".lstrip("/")
                if path not in self._ignored:
                    below += self._write_entry(fd, name, path, directory, writer)
            return below

    def _write_entry(
        self, fd: int, name: str, path: str, directory: _Directory, writer: LayerWriter
    ) -> list[_Directory]:
        state = os.stat(name, dir_fd=fd, follow_symlinks=False)
        lower = None if directory.lower is None else self._lower.child(directory.lower, name)
        attributes = self._attributes(state, lower)
        if stat.S_ISDIR(state.st_mode):
            return [self._open_directory(fd, path, directory, state, lower, writer)]
        if stat.S_ISCHR(state.st_mode) and state.st_rdev == 0:
            if lower is not None:
                self._write_parents(directory, writer)
                writer.add_whiteout(path)
        elif stat.S_ISLNK(state.st_mode):
            self._write_parents(directory, writer)
            writer.add_symlink(path, os.readlink(name, dir_fd=fd), attributes)
        elif stat.S_ISREG(state.st_mode):
            self._write_parents(directory, writer)
            _allow_owner(fd, name, state, 0o400)
            writer.add_linked_file(path, attributes, state, lambda: os.open(name, _OPEN, dir_fd=fd))
        return []

    def _open_directory(
        self, fd: int, path: str, above: _Directory, state: os.stat_result, lower: Node | None, writer: LayerWriter
    ) -> _Directory:
        """Write a directory now if it is new or changed, else only when an entry in it is written."""
        name = os.path.basename(path)
        _allow_owner(fd, name, state, 0o700)
        attributes = self._attributes(state, lower)
        with closing_fd(os.open(name, _OPEN_DIRECTORY, dir_fd=fd)) as opened:
            hides = is_opaque(opened)
        if lower is None and any(place.startswith(f"{path}/") for place in self._ignored):
            return _Directory(path, None, (*above.pending, (path, attributes)))
        if lower is None or not lower.is_directory or hides or attributes.mode != self._lower.attributes(lower).mode:
            self._write_parents(above, writer)
            writer.add_directory(path, attributes, is_opaque=hides and lower is not None)
            return _Directory(path, None if hides or lower is None or not lower.is_directory else lower)
        return _Directory(path, lower, (*above.pending, (path, attributes)))

    def _write_parents(self, directory: _Directory, writer: LayerWriter) -> None:
        for path, attributes in directory.pending:
            if path not in self._written:
                self._written.add(path)
                writer.add_directory(path, attributes)

    def _attributes(self, state: os.stat_result, lower: Node | None) -> Attributes:
        """A file that the guest changed keeps its recorded owner, and its set-id bits, which unpacking dropped."""
        mode, mtime = stat.S_IMODE(state.st_mode), int(state.st_mtime)
        if lower is None:
            return Attributes(mode, *self._owner, mtime)
        known = self._lower.attributes(lower)
        is_same_mode = mode == stat.S_IMODE(lower.state.st_mode)
        return Attributes(known.mode if is_same_mode else mode, known.uid, known.gid, mtime)


def _allow_owner(fd: int, name: str, state: os.stat_result, needed: int) -> None:
    """A guest may remove its own, and so our, permission to read. The layer has the mode that the guest set."""
    if state.st_mode & needed != needed:
        os.chmod(name, stat.S_IMODE(state.st_mode) | needed, dir_fd=fd)
