"""Compiled modules on disk: only what a clean worker of ours compiled is ever loaded again.

Loading compiled code means running it, so a file counts only when its MAC is right, and the key of the MAC is in a
file that nobody else can read. A directory that others could write to is not used at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import logging
import mmap
import os
import secrets
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)
_SECRET = "secret"
_SECRET_BYTES = 32
_MAX_OPEN = 32
_ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
DEFAULT_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Compiled:
    """Verified machine code, as an open file that nothing can change, and the facts that a run needs about it.

    Whoever gets one from the cache has a descriptor of its own and closes it.
    """

    descriptor: int
    facts: dict[str, Any]

    def copy(self) -> Compiled:
        return Compiled(os.dup(self.descriptor), self.facts)

    def close(self) -> None:
        os.close(self.descriptor)


class Unusable(Exception):
    """The directory is not safe to use; the reason is the text."""


def default_directory() -> Path | None:
    """`$XDG_CACHE_HOME/warmcell/wasm`, or None for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "warmcell" / "wasm" if os.path.isabs(base) else None


class ModuleCache:
    """Thread-safe. A cache that cannot be used behaves like an empty one: runs go on, compiling each time."""

    def __init__(self, directory: Path | None, most_bytes: int = DEFAULT_MOST_BYTES) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._secret: bytes | None = None
        self._open: OrderedDict[str, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: str) -> Compiled | None:
        with self._lock:
            if key in self._open:
                self._open.move_to_end(key)
                return self._open[key].copy()
            secret = self._usable_secret()
            compiled = self._read(key, secret) if secret else None
            if compiled is None:
                return None
            self._remember(key, compiled)
            return compiled.copy()

    def store(self, key: str, artefact: int, facts: dict[str, Any]) -> None:
        """Keeps what a clean worker wrote into the open file `artefact`."""
        with self._lock:
            secret = self._usable_secret()
            if not secret or self._directory is None:
                return
            try:
                self._write(self._directory, key, artefact, facts, secret)
                self._prune(self._directory)
            except OSError as error:
                _log.warning("compiled module not kept: %s", error)

    def forget(self, key: str) -> None:
        """Drops what wasmtime would not take."""
        with self._lock:
            compiled = self._open.pop(key, None)
            if compiled is not None:
                compiled.close()
            if self._directory is not None:
                for suffix in (".cwasm", ".json"):
                    with contextlib.suppress(OSError):
                        (self._directory / f"{key}{suffix}").unlink()

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _remember(self, key: str, compiled: Compiled) -> None:
        self._open[key] = compiled
        while len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)[1].close()

    def _usable_secret(self) -> bytes | None:
        if self._secret is None and self._directory is not None:
            try:
                prepare_directory(self._directory)
                self._secret = read_secret(self._directory)
            except (OSError, Unusable) as error:
                _log.warning("no cache of compiled modules: %s", error)
                self._directory = None
        return self._secret

    def _read(self, key: str, secret: bytes) -> Compiled | None:
        assert self._directory is not None
        try:
            record = json.loads((self._directory / f"{key}.json").read_bytes())
            descriptor = os.open(self._directory / f"{key}.cwasm", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            os.utime(descriptor)
            sealed = sealed_copy(file.fileno())
        expected = _mac(secret, key, record.get("facts"), digest_of(sealed))
        if not hmac.compare_digest(expected, str(record.get("mac"))):
            os.close(sealed)
            _log.warning("compiled module %s was tampered with or damaged; it is compiled anew", key)
            return None
        return Compiled(sealed, record["facts"])

    def _write(self, directory: Path, key: str, artefact: int, facts: dict[str, Any], secret: bytes) -> None:
        temporary = directory / f".{key}.{secrets.token_hex(8)}"
        digest = _copy(artefact, temporary)
        temporary.rename(directory / f"{key}.cwasm")
        record = {"facts": facts, "mac": _mac(secret, key, facts, digest)}
        temporary.write_bytes(json.dumps(record).encode())
        temporary.rename(directory / f"{key}.json")

    def _prune(self, directory: Path) -> None:
        files = sorted((item.stat().st_mtime, item.stat().st_size, item) for item in directory.glob("*.cwasm"))
        total = sum(size for _, size, _ in files)
        for _, size, item in files[:-1]:
            if total <= self._most_bytes:
                return
            item.unlink(missing_ok=True)
            item.with_suffix(".json").unlink(missing_ok=True)
            total -= size


def prepare_directory(directory: Path) -> None:
    """Makes it, for us alone; refuses one that somebody else owns or can write to."""
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    for item in (directory, directory.parent):
        found = os.lstat(item)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise Unusable(f"{item} must be a directory of ours that no one else can write to")


def read_secret(directory: Path) -> bytes:
    """The key of the MACs, made when there is none. Linking makes it appear whole or not at all."""
    path = directory / _SECRET
    if not path.exists():
        temporary = directory / f".{_SECRET}.{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise Unusable(f"{path} can be read by others")
        secret = file.read()
    if len(secret) != _SECRET_BYTES:
        raise Unusable(f"{path} is damaged; remove it")
    return secret


def sealed_copy(descriptor: int) -> int:
    """The file's content in memory, where nothing can change it any more: what is verified is what will be run.

    A worker can use it wherever it is confined to, without being able to reach the directory.
    """
    copy = os.memfd_create("warmcell-compiled", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    size, done = os.fstat(descriptor).st_size, 0
    while done < size:
        sent = os.sendfile(copy, descriptor, done, size - done)
        if not sent:
            break
        done += sent
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _ALL_SEALS)
    return copy


def digest_of(descriptor: int) -> str:
    """SHA-256 of an open file."""
    size = os.fstat(descriptor).st_size
    if not size:
        return hashlib.sha256().hexdigest()
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as content:
        return hashlib.sha256(content).hexdigest()


def _copy(source: int, target: Path) -> str:
    size = os.fstat(source).st_size
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "wb") as file, mmap.mmap(source, size, prot=mmap.PROT_READ) as content:
        file.write(content)
        return hashlib.sha256(content).hexdigest()


def _mac(secret: bytes, key: str, facts: object, digest: str) -> str:
    text = json.dumps([key, facts, digest], sort_keys=True, separators=(",", ":"))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
