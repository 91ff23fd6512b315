"""Tree: the files of a build's context, of an image or of a stage, read from outside and never beyond its root."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

from warmcell.core.errors import ImageInvalid
from warmcell.core.light import closing_fd
from warmcell.core.records import dataclass
from warmcell.images.build.layer_writer import Attributes
from warmcell.images.image_files import ImageFiles, topmost
from warmcell.workspace import openat2

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
Owners = Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Node:
    """An entry. `path` is relative to the root of the tree; `places` are its host paths, the topmost layer first."""

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
    """Merged directories, the lowest first, each with its owners. A context is a tree of one directory."""

    def __init__(self, layers: Sequence[str], owners: Sequence[Owners] = ()) -> None:
        self.files = ImageFiles(layers)
        self._owners = dict(zip(layers, owners, strict=False))

    def find(self, path: str) -> Node | None:
        """What is there. Links are followed, and lead nowhere but to entries of the tree."""
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
        """Owners as recorded when the layer was unpacked, else root."""
        state = node.state
        uid, gid, mode = self._owners_of(node).get(node.path, (0, 0, stat.S_IMODE(state.st_mode)))
        return Attributes(mode, uid, gid, int(state.st_mtime))

    def open(self, node: Node) -> int:
        """A regular file. The kernel refuses links on the way: somebody may be changing a context."""
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

    def _owners_of(self, node: Node) -> Owners:
        return self._owners.get(_root_of(node.places[0], node.path), {})


def _root_of(place: str, path: str) -> str:
    """The directory of a tree in which a path is at this place."""
    return place[: -len(path) - 1] if path else place


def _make_node(path: str, places: Sequence[str]) -> Node | None:
    try:
        return Node(path, tuple(places), os.lstat(places[0]))
    except OSError:  # removed meanwhile
        return None
