"""SavedState: what a server with `--state DIR` keeps for the next one.

    layout.json              the number of workers: the id of a sandbox names its worker; which key, if there is one
    worker-N/                one directory for each worker, held while it runs
        homes/NAME/          the files of a sandbox or snapshot, where they are used: nothing is copied at a stop
        packages/NAME/       packages that were installed in a sandbox
        sessions/NAME        the variables of a session: written by the guest, and read in a cage only
        records/ID.json      a sandbox, from its creation until it is removed
        snapshots/ID.json    a snapshot
        volumes/             see `e2b/volumes.py`

A record is replaced atomically by a complete draft, `*.new`. It is synced, together with the files, where
clients rely on it: after a pause, a snapshot and a stop. If it cannot be written, the previous one stays.

With a key, `homes/NAME` and `packages/NAME` are encrypted copies (`state_homes.py`), and the plain files are in
temporary directories. Volumes are never encrypted.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from warmcell.core.errors import ExecutionFailed, InvalidRequest
from warmcell.core.light import closing_fd, on_error
from warmcell.interfaces.serve.state_encryption import StateCipher
from warmcell.interfaces.serve.state_homes import (
    EncryptedHome,
    EncryptedSnapshot,
    LoadedPackages,
    SealedFiles,
    StateHome,
)
from warmcell.lifetime.descriptors import is_shortage
from warmcell.lifetime.held_directories import HeldDirectory, hold
from warmcell.lifetime.own_modes import grant_owner, make_directories, make_directory
from warmcell.sandbox.local.pip_packages import copy_packages, is_directory
from warmcell.sessions.image import SessionImage
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Root
from warmcell.workspace.untrusted_files import open_regular, parse_json
from warmcell.workspaces.snapshots.archive import sync_file_system
from warmcell.workspaces.snapshots.objects import sync_directory, sync_file

_log = logging.getLogger("warmcell.serve")
_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
SANDBOXES, SNAPSHOTS, VOLUMES = "records", "snapshots", "volumes"
_DIRECTORIES = ("homes", "packages", "sessions", SANDBOXES, SNAPSHOTS, VOLUMES)
_DRAFT = ".json.new"


class SavedState:
    """The saved state of one worker. Belongs to the server's event loop; slow methods are called in a thread."""

    def __init__(self, directory: str, worker: int, key: str | None = None) -> None:
        self._cipher, self._worker = StateCipher(key), f"worker-{worker}"
        self.path = os.path.join(os.path.abspath(directory), self._worker)
        for name in _DIRECTORIES:
            make_directories(os.path.join(self.path, name))
        held = hold(self.path)
        if held is None:
            raise InvalidRequest(f"{self.path!r} is in use by another server or user", field="state")
        self._held: HeldDirectory = held
        #: Set when the server stops: homes and records then stay.
        self.is_closing = False
        self._numbers = itertools.count(1)
        #: By path: the number of the record that is stored there.
        self._newest: dict[str, int] = {}
        self._replacing = threading.Lock()
        #: Whether a record cannot be read. Files that no other record names may belong to it, and are not removed.
        self.has_unreadable = False
        self._remove_drafts()

    def _remove_drafts(self) -> None:
        """Remove the drafts that a killed server left."""
        for kind in (SANDBOXES, SNAPSHOTS, VOLUMES):
            for entry in os.scandir(os.path.join(self.path, kind)):
                if entry.name.endswith(_DRAFT) and not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)

    @property
    def is_encrypted(self) -> bool:
        return self._cipher.fingerprint is not None

    def make_home(self) -> StateHome:
        """Make a directory for the files of a sandbox."""
        name = secrets.token_hex(16)
        with explain_failure("make the directory of a sandbox"):
            if (sealed := self._seal_at("homes", name)) is not None:
                return EncryptedHome(self, name, sealed)
            home = StateHome(self, name)
            make_directory(home.path)
        return home

    def find_home(self, name: Any, version: Any) -> Callable[[], StateHome] | None:
        """A function that loads the files of a sandbox, to be called in a thread; None if there are none."""
        if not self._has("homes", name):
            return None
        sealed = self._seal_at("homes", name)
        return (lambda: StateHome(self, name)) if sealed is None else (lambda: self._load_home(name, sealed, version))

    def _load_home(self, name: str, sealed: SealedFiles, version: Any) -> StateHome:
        home = EncryptedHome(self, name, sealed)
        home.is_kept = True
        with on_error(home.close), explain_failure("restore the files"):
            home.load(str(version))
        return home

    def keep_copy(self, directory: str) -> StateHome:
        """Make an encrypted copy of these files, for a snapshot."""
        name = secrets.token_hex(16)
        sealed = self._seal_at("homes", name)
        assert sealed is not None
        copy = EncryptedSnapshot(self, name, sealed)
        with on_error(copy.close), explain_failure("save the files"):
            sealed.save(directory)
        return copy

    def find_copy(self, name: Any) -> StateHome | None:
        """The files of a snapshot."""
        if not self._has("homes", name):
            return None
        sealed = self._seal_at("homes", name)
        return StateHome(self, name) if sealed is None else EncryptedSnapshot(self, name, sealed)

    def _seal_at(self, kind: str, name: str) -> SealedFiles | None:
        key = self._cipher.derive_for(self._place(kind, name))
        return None if key is None else SealedFiles(os.path.join(self.path, kind, name), key)

    def next_number(self) -> int:
        """The `number` for `put`. Take it before making the document: a later document never has a smaller number."""
        return next(self._numbers)

    def put(
        self,
        kind: str,
        identity: str,
        document: dict[str, Any],
        *,
        number: int = 0,
        is_durable: bool = False,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Write a record. Of two concurrent calls, the document with the higher number stays.

        `is_wanted` is asked last: what it names may have been removed while the record was synced.
        """
        number, path = number or self.next_number(), self._record(kind, identity)
        draft = f"{path.removesuffix('.json')}.{number}{_DRAFT}"
        with explain_failure(f"write to the {kind} of this server"):
            try:
                with open(draft, "wb") as file:
                    grant_owner(file.fileno())
                    os.fchmod(file.fileno(), 0o600)  # it has the secrets of the sandbox
                    file.write(self._cipher.seal(json.dumps(document).encode(), self._place(kind, identity)))
                if is_durable:
                    self.sync_files()
                    sync_file(draft)
                with self._replacing:
                    if not is_wanted():
                        return
                    if number > self._newest.get(path, 0):
                        os.replace(draft, path)
                        self._newest[path] = number
                if is_durable:
                    with suppress(FileNotFoundError):  # it was removed meanwhile
                        sync_file(path)
                    sync_directory(os.path.dirname(path))
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(draft)

    def remove(self, kind: str, identity: str) -> None:
        if self.is_closing:
            return
        path = self._record(kind, identity)
        with self._replacing:  # `put` replaces it before, or asks `is_wanted` after this
            self._newest.pop(path, None)
        with suppress(FileNotFoundError):
            os.unlink(path)

    def documents(self, kind: str) -> list[dict[str, Any]]:
        """Every record, the oldest first. One that cannot be read is logged and kept."""
        found = []
        directory = os.path.join(self.path, kind)
        for name in os.listdir(directory):
            if not name.endswith(".json"):
                continue
            try:
                with open(open_regular(os.path.join(directory, name), "state"), "rb") as file:
                    place = self._place(kind, name.removesuffix(".json"))
                    document = parse_json(self._cipher.open(file.read(), place))
                identity = document.get("id") if isinstance(document, dict) else None
                if not is_name(identity) or f"{identity}.json" != name:
                    raise ValueError("it has another id")
            except (OSError, ValueError, InvalidRequest) as error:
                _log.error("cannot read %s in %s: %s", name, directory, error)
                self.has_unreadable = True
                continue
            found.append(document)
        return sorted(found, key=lambda document: str(document.get("created")))

    def keep_packages(self, source: str | None) -> str | None:
        """Copy installed packages to the state; return the copy's name."""
        if source is None:
            return None
        name = secrets.token_hex(16)
        path, sealed = os.path.join(self.path, "packages", name), self._seal_at("packages", name)
        with on_error(lambda: remove_directory(path)), explain_failure("save the packages"):
            if sealed is not None:
                sealed.save(source)
            else:
                make_directory(path)
                copy_packages(source, path)
        return name

    def has_packages(self, name: Any) -> bool:
        return self._has("packages", name)

    def _has(self, kind: str, name: Any) -> bool:
        return is_name(name) and is_directory(os.path.join(self.path, kind, name))

    def load_packages(self, name: str) -> LoadedPackages:
        """Load packages, for the caller to close. Raises `SandboxError`. Call in a thread."""
        sealed = self._seal_at("packages", name)
        if sealed is None:
            return LoadedPackages(os.path.join(self.path, "packages", name))
        private = PrivateDirectory("packages")
        with on_error(private.close), explain_failure("restore the packages"), Root(private.path) as target:
            sealed.load(target)
        return LoadedPackages(private.path, private.close)

    def remove_packages(self, name: Any) -> None:
        if not self.is_closing and self.has_packages(name):
            remove_directory(os.path.join(self.path, "packages", name))

    def keep_image(self, image: SessionImage) -> str:
        """Write the variables of a session to a file; return its name."""
        name = secrets.token_hex(16)
        with (
            on_error(lambda: self.remove_image(name)),
            explain_failure("save the session"),
            open(self._image(name), "xb") as file,
        ):
            grant_owner(file.fileno())
            os.fchmod(file.fileno(), 0o600)
            self._cipher.write(file, image.pieces(), self._place("sessions", name))
        return name

    def load_image(self, name: Any, max_bytes: int) -> SessionImage:
        """Open saved variables, for the caller to close. Raises `InvalidRequest`, `ValueError` or `OSError`."""
        image = SessionImage(max_bytes)
        with on_error(image.close), open(self._image(name), "rb", opener=_open_saved) as file:
            for piece in self._cipher.read(file, self._place("sessions", name)):
                image.add(piece)
        return image

    def remove_image(self, name: Any) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._image(name))

    def _place(self, kind: str, name: str) -> str:
        """The place that an encrypted record or image is bound to."""
        return f"{self._worker}/{kind}/{name}"

    def _image(self, name: Any) -> str:
        if not is_name(name):
            raise InvalidRequest("is not a name", field="image")
        return os.path.join(self.path, "sessions", name)

    def remove_unused(self, homes: set[str], packages: set[str], images: set[str]) -> None:
        """Remove what no record names, which a killed server left. Does nothing while a record cannot be read."""
        if self.has_unreadable:
            _log.error("unused files in %s stay until all records there can be read, or are removed", self.path)
            return
        for kind, used in (("homes", homes), ("packages", packages), ("sessions", images)):
            for entry in list(os.scandir(os.path.join(self.path, kind))):
                if entry.name not in used:
                    remove_unused(entry)

    def sync_files(self) -> None:
        with closing_fd(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            sync_file_system(descriptor)

    def close(self) -> None:
        self._held.release()

    def _record(self, kind: str, identity: str) -> str:
        if not is_name(identity):
            raise InvalidRequest("is not an id", field="id")
        return os.path.join(self.path, kind, f"{identity}.json")


def _open_saved(path: str, flags: int) -> int:
    """`open_regular`, but a shortage of the host is an `OSError`: it says nothing about the file."""
    try:
        return open_regular(path, "state", flags)
    except InvalidRequest as refusal:
        if isinstance(refusal.__context__, OSError) and is_shortage(refusal.__context__):
            raise refusal.__context__ from None
        raise


def remove_unused(entry: os.DirEntry[str]) -> None:
    """Remove a directory or a file. Links and special files are not ours, and stay."""
    try:
        if entry.is_dir(follow_symlinks=False):
            remove_directory(entry.path)
        elif entry.is_file(follow_symlinks=False):
            os.unlink(entry.path)
        else:
            _log.warning("not removing %s: neither a file nor a directory", entry.path)
    except OSError as error:
        _log.warning("cannot remove %s: %s", entry.path, error)


@contextmanager
def explain_failure(doing: str) -> Iterator[None]:
    """Turn a disk error into one that clients may see: the host's fault, and without a path."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
            raise
        hint = "the operator must free space on the disk of `--state`; try again later"
        raise ExecutionFailed(f"cannot {doing}: {error.strerror}", hint=hint) from error


def is_name(name: Any) -> bool:
    return isinstance(name, str) and _ID.fullmatch(name) is not None and not name.startswith(".")
