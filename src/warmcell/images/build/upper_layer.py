"""Writes the upper directory of an overlay as a layer.

Its whiteouts are devices 0:0 and its opaque directories have an attribute; a layer has the names of the OCI format.
A guest made all of this, but none of its processes is left, and no other user can write there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

from warmcell.core.errors import ImageInvalid
from warmcell.core.light import closing_fd
from warmcell.core.records import dataclass
from warmcell.images.build.layer_writer import Attributes, LayerWriter
from warmcell.images.build.trees import Node, Tree
from warmcell.images.image_files import is_opaque
from warmcell.images.limits import MAX_PATH_BYTES
from warmcell.workspace import openat2

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory to walk, and what lower layers have there."""

    path: str
    lower: Node | None
    #: Directories above it, and itself, that are written when something in them is.
    pending: tuple[tuple[str, Attributes], ...] = ()


class UpperLayer:
    """One upper directory over `lower`. New files belong to `owner`; changed ones keep their owners.

    `ignored` are paths at which the cage put something of its own. Devices, sockets and FIFOs are left out.
    """

    def __init__(self, directory: str, lower: Tree, owner: tuple[int, int], ignored: Collection[str] = ()) -> None:
        self._directory = directory
        self._lower = lower
        self._owner = owner
        self._ignored = ignored
        self._written: set[str] = set()

    def write(self, writer: LayerWriter) -> None:
        with closing_fd(os.open(self._directory, _DIRECTORY)) as root:
            waiting = [_Directory("", self._lower.find("/"))]
            while waiting:
                # Depth first, in the order of names.
                waiting += reversed(self._write_directory(root, waiting.pop(), writer))

    def _write_directory(self, root: int, directory: _Directory, writer: LayerWriter) -> list[_Directory]:
        """Write its entries; return the directories in it."""
        if len(os.fsencode(directory.path)) > MAX_PATH_BYTES:
            raise ImageInvalid(f"the step made directories deeper than {MAX_PATH_BYTES} bytes of path")
        with closing_fd(openat2.open_beneath(root, directory.path or ".", _DIRECTORY)) as fd:
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
            return [self._open_directory(fd, name, path, directory, state, lower, writer)]
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
            writer.add_linked_file(path, attributes, state, lambda: os.open(name, _FILE, dir_fd=fd))
        return []

    def _open_directory(
        self,
        fd: int,
        name: str,
        path: str,
        above: _Directory,
        state: os.stat_result,
        lower: Node | None,
        writer: LayerWriter,
    ) -> _Directory:
        """A directory that is as it was below, or that the cage made, is written only if something in it is."""
        _allow_owner(fd, name, state, 0o700)
        attributes = self._attributes(state, lower)
        hides = _is_opaque(fd, name)
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
        """Unpacking drops set-id bits from files, and the copy of such a file lacks them: they are as recorded."""
        mode, mtime = stat.S_IMODE(state.st_mode), int(state.st_mtime)
        if lower is None:
            return Attributes(mode, *self._owner, mtime)
        known = self._lower.attributes(lower)
        is_same_mode = mode == stat.S_IMODE(lower.state.st_mode)
        return Attributes(known.mode if is_same_mode else mode, known.uid, known.gid, mtime)


def _allow_owner(fd: int, name: str, state: os.stat_result, needed: int) -> None:
    """A guest may take away its own permission to read, and so ours. The layer has the mode that it set."""
    if state.st_mode & needed != needed:
        os.chmod(name, stat.S_IMODE(state.st_mode) | needed, dir_fd=fd)


def _is_opaque(fd: int, name: str) -> bool:
    with closing_fd(os.open(name, _DIRECTORY, dir_fd=fd)) as directory:
        return is_opaque(directory)
