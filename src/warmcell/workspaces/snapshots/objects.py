"""Storage for packs and snapshot records: a directory, or any file system of fsspec, such as S3."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from warmcell.core.errors import BackendUnavailable, ExecutionFailed, InvalidRequest, SandboxError, SnapshotInvalid
from warmcell.core.light import closing_fd, on_error
from warmcell.lifetime.own_modes import change_mode, grant_owner, make_directories

PACKS, SNAPSHOTS = "packs", "snapshots"
_UNFINISHED = ".new-"
_NAME = re.compile(r"[0-9a-f]{32}")


class Objects(Protocol):
    """Named, immutable objects. `put` is all or nothing, and durable when it returns."""

    def names(self, kind: str) -> list[str]: ...

    def read(self, kind: str, name: str) -> bytes: ...

    def put(self, kind: str, name: str, path: str) -> None:
        """Move a finished local file into the storage."""

    def fetch(self, kind: str, name: str, directory: str) -> str:
        """The path of a local copy, which is created in `directory` if necessary."""

    def remove(self, kind: str, name: str) -> None:
        """A missing object is not an error."""


class LocalObjects:
    """Objects as files below a directory."""

    def __init__(self, path: str) -> None:
        self._path = path
        for kind in (PACKS, SNAPSHOTS):
            make_directories(os.path.join(path, kind))

    def names(self, kind: str) -> list[str]:
        """Regular files only: the store may have been copied from another user, and a FIFO would block."""
        with os.scandir(os.path.join(self._path, kind)) as entries:
            return [it.name for it in entries if _NAME.fullmatch(it.name) and it.is_file(follow_symlinks=False)]

    def read(self, kind: str, name: str) -> bytes:
        try:
            with open(self._file(kind, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise missing(kind, name) from None

    def put(self, kind: str, name: str, path: str) -> None:
        sync_file(path)
        os.rename(path, self._file(kind, name))
        sync_directory(os.path.join(self._path, kind))

    def fetch(self, kind: str, name: str, directory: str) -> str:
        return self._file(kind, name)

    def remove(self, kind: str, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._file(kind, name))
        sync_directory(os.path.join(self._path, kind))

    def _file(self, kind: str, name: str) -> str:
        return os.path.join(self._path, kind, name)


class UrlObjects:
    """Objects below a URL, through fsspec. While one machine compacts the store, no other may write to it."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self._files, self._path = _open_url(url, options or {})
        for kind in (PACKS, SNAPSHOTS):
            with self._explain(f"create the directory {kind!r}"):
                self._files.makedirs(f"{self._path}/{kind}", exist_ok=True)

    def names(self, kind: str) -> list[str]:
        with self._explain(f"list {kind}"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(f"{self._path}/{kind}", detail=False)
            except FileNotFoundError:  # object stores have no empty directories
                return []
        return [name for path in found if _NAME.fullmatch(name := str(path).rstrip("/").rsplit("/", 1)[-1])]

    def read(self, kind: str, name: str) -> bytes:
        with self._explain(f"read {kind}/{name}"):
            try:
                return bytes(self._files.cat_file(self._file(kind, name)))
            except FileNotFoundError:
                raise missing(kind, name) from None

    def put(self, kind: str, name: str, path: str) -> None:
        try:
            with self._explain(f"write {kind}/{name}"):
                self._files.put_file(path, self._file(kind, name))
        finally:
            os.unlink(path)

    def fetch(self, kind: str, name: str, directory: str) -> str:
        path = os.path.join(directory, name)
        if not os.path.exists(path):
            with self._explain(f"read {kind}/{name}"):
                try:
                    self._files.get_file(self._file(kind, name), path + ".part")
                except FileNotFoundError:
                    raise missing(kind, name) from None
            change_mode(path + ".part", 0o600)  # whatever the umask
            os.rename(path + ".part", path)
        return path

    def remove(self, kind: str, name: str) -> None:
        with self._explain(f"remove {kind}/{name}"), suppress(FileNotFoundError):
            self._files.rm_file(self._file(kind, name))

    def _file(self, kind: str, name: str) -> str:
        return f"{self._path}/{kind}/{name}"

    @contextmanager
    def _explain(self, action: str) -> Iterator[None]:
        """Translate errors, which every file system of fsspec has its own of. The message omits the URL's password."""
        try:
            yield
        except SandboxError:
            raise
        except Exception as error:
            place = self._files.unstrip_protocol(self._path)
            hint = "check the URL, its options and credentials, and whether the server answers"
            reason = f"cannot {action} in {place!r}: {str(error) or type(error).__name__}"
            raise BackendUnavailable(reason, hint=hint) from error


@contextmanager
def explain_writes() -> Iterator[None]:
    """Turn an error of the store's disk into a typed one: to callers, an `OSError` is that of a file being read."""
    try:
        yield
    except OSError as error:
        reason = f"could not write to the store: {error.strerror}"
        raise ExecutionFailed(reason, hint="free space on its disk") from error


class Staging:
    """A local directory for unfinished files. `clear` removes those that killed programs left."""

    def __init__(self, path: str) -> None:
        self.path = path
        make_directories(path)

    def new_path(self) -> str:
        return os.path.join(self.path, _UNFINISHED + os.urandom(12).hex())

    def put_bytes(self, objects: Objects, kind: str, name: str, data: bytes) -> None:
        path = self.new_path()
        with explain_writes(), on_error(lambda: discard(path)):
            with open(path, "xb") as file:
                grant_owner(file.fileno())
                file.write(data)
            objects.put(kind, name, path)

    def clear(self) -> None:
        """Only while no other program writes to the store."""
        for name in os.listdir(self.path):
            path = os.path.join(self.path, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def discard(path: str) -> None:
    """Remove an unfinished file."""
    with suppress(OSError):
        os.unlink(path)


def missing(kind: str, name: str) -> SnapshotInvalid:
    return SnapshotInvalid(f"{kind}/{name} is missing from the store", hint="restore the store from a backup")


def sync_file(path: str) -> None:
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)


sync_directory = sync_file


def _open_url(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        hint = "pip install 'warmcell[fsspec]'"
        raise BackendUnavailable(f"{url!r} needs the package 'fsspec', which is not installed", hint=hint) from None
    try:
        files, path = url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        hint = "install the package that fsspec names for it, such as s3fs"
        raise InvalidRequest(f"cannot open {url!r}: {error}", field="url", hint=hint) from None
    return files, str(path).rstrip("/")
