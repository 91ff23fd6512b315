"""Compiled modules on disk. Only code that a clean worker compiled is ever loaded."""

from __future__ import annotations

import functools
import os
from collections import OrderedDict
from collections.abc import Callable

from warmcell.core.late_log import LateLog
from warmcell.lifetime.ownership import Lock
from warmcell.toolbox.signed_directory import SignedDirectory, SignedFile, Tampered, Unusable, cache_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_log = LateLog(__name__)
#: Limits on open files. The size counts too: callers decide how large their modules are.
_MAX_OPEN = 32
_MOST_OPEN_BYTES = 512 << 20
DEFAULT_MOST_BYTES = 1 << 30


class ModuleCache:
    """Thread-safe. An unusable cache behaves like an empty one: runs then compile each time."""

    def __init__(self, path: str | os.PathLike[str] | None, most_bytes: int = DEFAULT_MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._directory: SignedDirectory | None = None
        self._open: OrderedDict[str, SignedFile] = OrderedDict()
        self._lock = Lock()

    def find(self, key: str, shipped: Callable[[], SignedFile | None] = lambda: None) -> SignedFile | None:
        """The compiled module, for the caller to close: the `shipped` one, which is cheap, or the cached one.

        Holds the lock while it reads, so that concurrent callers do not copy many megabytes twice.
        """
        with self._lock:
            if key not in self._open:
                compiled = shipped() or self._read(key)
                if compiled is None:
                    return None
                self._remember(key, compiled)
            self._open.move_to_end(key)
            return self._open[key].copy()

    def store(self, key: str, artefact: int, facts: dict[str, Any]) -> None:
        """Stores what a clean worker wrote into the open file `artefact`."""
        with self._lock:
            directory = self._usable()
            if directory is None:
                return
            try:
                directory.write(key, artefact, facts)
                directory.prune(self._most_bytes)
            except OSError as error:
                _warn_once(f"cannot cache compiled modules in {directory.path}: {error.strerror}")

    def forget(self, key: str) -> None:
        """Drops code that wasmtime refused. Shipped files stay, and so does the cached file beside them."""
        with self._lock:
            compiled = self._open.pop(key, None)
            if compiled is not None:
                compiled.close()
            is_kept = compiled is None or not compiled.is_shipped
            if self._directory is not None and is_kept:
                self._directory.forget(key)

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _remember(self, key: str, compiled: SignedFile) -> None:
        if key in self._open:  # another thread was faster
            compiled.close()
            return
        self._open[key] = compiled
        while len(self._open) > 1 and (len(self._open) > _MAX_OPEN or self._open_bytes() > _MOST_OPEN_BYTES):
            self._open.popitem(last=False)[1].close()

    def _open_bytes(self) -> int:
        return sum(os.fstat(compiled.descriptor).st_size for compiled in self._open.values())

    def _read(self, key: str) -> SignedFile | None:
        directory = self._usable()
        try:
            return directory.read(key) if directory is not None else None
        except Tampered:
            _log.warning("compiled module %s was damaged or tampered with; compiling it again", key)
            return None

    def _usable(self) -> SignedDirectory | None:
        if self._directory is None and self._path is not None:
            try:
                self._directory = SignedDirectory(self._path)
            except (OSError, Unusable) as error:
                _warn_once(f"cannot cache compiled modules: {error}")
                self._path = None
        return self._directory


@functools.cache
def shared_cache() -> ModuleCache:
    """The user's cache, for all backends and sandboxes without a directory of their own."""
    return ModuleCache(cache_directory("wasm"))


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s; every new process compiles them again, which takes seconds", text)
