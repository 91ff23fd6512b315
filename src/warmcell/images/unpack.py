"""Unpacks one untrusted layer into a directory that no other process uses.

Parents are opened with `openat2` as if the directory were the root, so no link leads out, and the last name is created
without following links. Files belong to this user: the layer's owners are recorded, set-id bits are dropped; devices,
FIFOs and extended attributes are not created. Whiteouts are converted to those of overlayfs.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from warmcell.core.errors import BackendUnavailable, ImageInvalid
from warmcell.core.light import closing_fd, on_error
from warmcell.images.blobs import CHUNK
from warmcell.images.decompress import LayerReader
from warmcell.images.limits import Budget
from warmcell.images.tar_reader import TarEntry, display, read_entries, split_path
from warmcell.lifetime.descriptors import host_failure
from warmcell.workspace import openat2

_WHITEOUT, _OPAQUE, _AUFS = b".wh.", b".wh..wh..opq", b".wh..wh."
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors that the layer causes; all others are the host's.
_LAYER_FAULTS = {
    errno.ENOENT: "is below a dangling link, or links to a file that the layer does not have",
    errno.ENOTDIR: "is below an entry that is not a directory",
    errno.EEXIST: "is below a dangling link",
    errno.ELOOP: "is below a loop of symbolic links",
    errno.EXDEV: "leads out of the image",
    errno.ENAMETOOLONG: "is too long",
    errno.ENOTEMPTY: "replaces a directory that is not empty",
    errno.EISDIR: "is both a directory and another kind of entry",
    errno.EMLINK: "has too many links",
    errno.EILSEQ: "has a name that this file system does not accept",
    errno.EINVAL: "has a name that this file system does not accept",
}

#: (uid, gid, mode) by path, of entries whose unpacked files have others.
Owners = dict[str, tuple[int, int, int]]
Path = tuple[bytes, ...]
T = TypeVar("T")


class WhiteoutsUnsupported(Exception):
    """The store's file system does not support whiteouts, such as overlayfs itself in most containers."""


class Unpacker:
    """Unpacks one layer. `owners` has the owners and modes that files could not be given, at first of layers below."""

    def __init__(self, directory: str, budget: Budget, owners: Owners | None = None) -> None:
        self._root = os.open(directory, _OPEN_DIRECTORY)
        self._budget = budget
        #: The directory of the last entry, cached: consecutive entries mostly share it.
        self._parent: tuple[Path, int] | None = None
        self.owners: Owners = {} if owners is None else owners

    def unpack(self, reader: LayerReader) -> Owners:
        """Unpack the whole stream. Used once."""
        try:
            if not openat2.is_available():
                raise BackendUnavailable("unpacking an image needs openat2(2)", hint="use Linux 5.6 or later")
            for entry in read_entries(reader):
                self.add(entry, reader)
        finally:
            self._forget_parent()
            os.close(self._root)
        return self.owners

    def add(self, entry: TarEntry, reader: LayerReader) -> None:
        self._budget.count_entry(entry.path)
        with _layer_faults(entry):
            if not entry.path:
                if entry.kind != "directory":
                    raise ImageInvalid("a layer replaces the root directory")
                os.fchmod(self._root, _directory_mode(entry.mode))
                return
            parent, name = self._open_parent(entry.path[:-1]), entry.path[-1]
            if name.startswith(_WHITEOUT):
                self._apply_whiteout(parent, entry.path)
                return
            self._create(parent, name, entry, reader)
        self._record_owner(entry)

    def _create(self, parent: int, name: bytes, entry: TarEntry, reader: LayerReader) -> None:
        match entry.kind:
            case "file" | "special":
                self._write_file(parent, name, entry, reader)
            case "directory":
                self._make_directory(parent, name, entry.mode)
            case "symlink":
                self._replace(parent, name, lambda: os.symlink(entry.link, name, dir_fd=parent))
                os.utime(name, (entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)
            case "hardlink":
                self._link(parent, name, entry)

    def _write_file(self, parent: int, name: bytes, entry: TarEntry, reader: LayerReader) -> None:
        with closing_fd(self._replace(parent, name, lambda: os.open(name, _CREATE, 0o600, dir_fd=parent))) as fd:
            left = entry.size
            while left:
                piece = reader.read_some(min(left, CHUNK))
                if not piece:
                    raise ImageInvalid(f"a layer is truncated in {entry.text!r}")
                left -= len(piece)
                while piece:
                    piece = piece[os.write(fd, piece) :]
            os.fchmod(fd, entry.mode & 0o777 | 0o400)
            os.utime(fd, (entry.mtime, entry.mtime))

    def _make_directory(self, parent: int, name: bytes, mode: int) -> None:
        found = mode_of(parent, name)
        is_whiteout = found is not None and stat.S_ISCHR(found)
        if found is None or not stat.S_ISDIR(found):
            self._replace(parent, name, lambda: os.mkdir(name, 0o700, dir_fd=parent))
        os.chmod(name, _directory_mode(mode), dir_fd=parent)
        if is_whiteout:  # the layer removed the lower directory and made a new one
            self._make_opaque(parent, name)

    def _link(self, parent: int, name: bytes, entry: TarEntry) -> None:
        source = split_path(entry.link)
        if not source or source == entry.path:
            raise ImageInvalid(f"{entry.text!r} is a hard link to {display(entry.link)!r}: itself or the root")
        with closing_fd(openat2.open_in_root(self._root, b"/".join(source[:-1]) or b".", _OPEN_DIRECTORY)) as above:
            mode = os.stat(source[-1], dir_fd=above, follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                raise ImageInvalid(f"{entry.text!r} is a hard link to {display(entry.link)!r}, which is not a file")

            def link() -> None:
                os.link(source[-1], name, src_dir_fd=above, dst_dir_fd=parent, follow_symlinks=False)

            self._replace(parent, name, link)

    def _apply_whiteout(self, parent: int, path: Path) -> None:
        name = path[-1]
        if name == _OPAQUE:
            self.hide_content(parent, path[:-1])
        elif not name.startswith(_AUFS):  # bookkeeping of AUFS, which is not part of the image
            (hidden,) = split_path(name.removeprefix(_WHITEOUT)) or (b"",)
            if not hidden:
                raise ImageInvalid(f"{display(name)!r} is a whiteout that names no file")
            self.hide(parent, (*path[:-1], hidden))

    def hide(self, parent: int, path: Path) -> None:
        """Hide a path of lower layers, and nothing of this layer."""
        found = mode_of(parent, path[-1])
        if found is None:
            with _whiteout_faults():
                os.mknod(path[-1], stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
        elif stat.S_ISDIR(found):
            self._make_opaque(parent, path[-1])

    def hide_content(self, directory: int, path: Path) -> None:
        """Hide the content of a directory in lower layers."""
        with _whiteout_faults():
            os.setxattr(directory, "user.overlay.opaque", b"y")

    def _make_opaque(self, parent: int, name: bytes) -> None:
        with closing_fd(os.open(name, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)) as fd:
            self.hide_content(fd, ())

    def _replace(self, parent: int, name: bytes, create: Callable[[], T]) -> T:
        """Create a name. A later entry replaces an earlier one, but not a directory with content."""
        try:
            return create()
        except FileExistsError:
            found = mode_of(parent, name)
            if found is not None and stat.S_ISDIR(found):
                self.remove_directory(parent, name)
            else:
                os.unlink(name, dir_fd=parent)
            return create()

    def remove_directory(self, parent: int, name: bytes) -> None:
        """Remove an empty directory that an entry of another kind replaces."""
        os.rmdir(name, dir_fd=parent)

    def _open_parent(self, path: Path) -> int:
        """Open an entry's directory, creating missing parents. The descriptor is valid until the next call."""
        if self._parent is not None and self._parent[0] == path:
            return self._parent[1]
        self._forget_parent()
        try:
            fd = self._open_directory(path)
        except FileNotFoundError:
            fd = self._make_parents(path)
        self._parent = (path, fd)
        return fd

    def _make_parents(self, path: Path) -> int:
        depth, fd = self._open_deepest(path)
        with on_error(lambda: os.close(fd)):
            for length in range(depth + 1, len(path) + 1):
                made, name = path[:length], path[length - 1]
                self._budget.count_entry(made)
                self.owners.pop(os.fsdecode(b"/".join(made)), None)
                os.mkdir(name, 0o755, dir_fd=fd)
                os.chmod(name, 0o755, dir_fd=fd)  # whatever the umask
                below = os.open(name, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = below
        return fd

    def _open_deepest(self, path: Path) -> tuple[int, int]:
        """Open the deepest existing parent, searching upwards: usually only the last directory is missing."""
        for depth in range(len(path) - 1, 0, -1):
            try:
                return depth, self._open_directory(path[:depth])
            except FileNotFoundError:
                continue
        return 0, os.dup(self._root)

    def _open_directory(self, path: Path) -> int:
        return openat2.open_in_root(self._root, b"/".join(path) or b".", _OPEN_DIRECTORY)

    def _forget_parent(self) -> None:
        parent, self._parent = self._parent, None
        if parent is not None:
            os.close(parent[1])

    def _record_owner(self, entry: TarEntry) -> None:
        path = os.fsdecode(b"/".join(entry.path))
        is_kept = entry.kind in ("symlink", "hardlink") or entry.mode & 0o6000 == 0
        if entry.uid or entry.gid or not is_kept:
            self.owners[path] = (entry.uid, entry.gid, entry.mode)
        else:
            self.owners.pop(path, None)


def _directory_mode(mode: int) -> int:
    """Keep the sticky bit, drop set-id bits; the owner must be able to list and remove it."""
    return mode & 0o1777 | 0o700


def mode_of(parent: int, name: bytes) -> int | None:
    """The type and mode of an entry, or None if there is none."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


@contextmanager
def _whiteout_faults() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        raise WhiteoutsUnsupported from error


@contextmanager
def _layer_faults(entry: TarEntry) -> Iterator[None]:
    """Turn errors into `ImageInvalid` if the layer causes them, else into a failure of the host."""
    try:
        yield
    except OSError as error:
        reason = _LAYER_FAULTS.get(error.errno or 0)
        if reason is None:
            raise host_failure(error, f"unpack {entry.text!r}") from error
        raise ImageInvalid(f"{entry.text!r} {reason}") from None
