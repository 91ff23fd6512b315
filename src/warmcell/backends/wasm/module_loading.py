"""Gets a module into a worker: from its memory, from the cache, or by compiling it there, under limits.

What a worker compiled is kept on disk only when no guest had touched that worker before: a guest that took a worker
over could otherwise plant code for other modules. Large modules are therefore compiled in a clean worker only. A bug
in the compiler that a module triggers can spoil that module's own entry and no other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
from typing import Any

from warmcell.backends.wasm.conversation import Bounds, Conversation, OverMemory
from warmcell.backends.wasm.frames import Frame, Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.module_cache import Compiled, ModuleCache
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.pool import Lease, WorkerPool
from warmcell.backends.wasm.run_request import MIB
from warmcell.backends.wasm.runtime import runtime_fingerprint
from warmcell.core.errors import ExecutionTimeout, InvalidRequest, MemoryExceeded

_log = logging.getLogger(__name__)
#: Larger modules are worth a fresh worker, so that their compiled form can be kept.
_LARGE_BYTES = 64 * 1024
_MOST_LOADED = 64
COMPILE_MEMORY_MB = 1024
OWN_COMPILE_SECONDS = 600.0
OWN_COMPILE_MEMORY_MB = 8192


def loaded_key(source: ModuleSource, needs_fuel: bool) -> str:
    """The name of a loaded module inside a worker."""
    return f"{source.digest}:{source.entry}:{source.is_own:d}:{needs_fuel:d}"


def cache_key(source: ModuleSource, needs_fuel: bool) -> str:
    """Two requests share compiled code exactly when this is the same."""
    parts = [source.digest, source.entry, source.is_own, needs_fuel, *runtime_fingerprint()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Loader:
    """Thread-safe, as far as leases are held by one thread each."""

    def __init__(self, pool: WorkerPool, cache: ModuleCache) -> None:
        self._pool = pool
        self._cache = cache
        self._compiling = threading.Lock()

    def ensure(self, lease: Lease, source: ModuleSource, needs_fuel: bool, seconds: float, timeout: float) -> None:
        """After this the lease's worker, which may be another one then, has the module."""
        key = loaded_key(source, needs_fuel)
        if key in lease.worker.loaded:
            lease.worker.loaded.move_to_end(key)
            return
        if self._adopt(lease, source, needs_fuel, timeout):
            return
        data = source.read()
        if len(data) > _LARGE_BYTES and not lease.worker.is_clean:
            lease.swap_for_clean()
        bounds = Bounds(seconds, _compile_memory(source))
        if not source.is_own:
            self._compile(lease, source, data, needs_fuel, bounds, timeout)
            return
        # One at a time, since it takes seconds and who waits finds it done. The worker is leased already: a lock that
        # is held while waiting for a worker could wait for ever.
        with self._compiling:
            if not self._adopt(lease, source, needs_fuel, timeout):
                _log.info("compiling a module of the toolbox, once on this machine")
                self._compile(lease, source, data, needs_fuel, bounds, timeout)

    def prepare_own(self, source: ModuleSource, needs_fuel: bool, *, may_wait: bool = True) -> None:
        """Makes sure that a module of ours is in the cache; the first time on a machine this takes seconds."""
        key = loaded_key(source, needs_fuel)
        with Lease(self._pool, key, needs_clean=True, may_wait=may_wait) as lease:
            self.ensure(lease, source, needs_fuel, OWN_COMPILE_SECONDS, OWN_COMPILE_SECONDS)
            lease.is_reusable = True

    def find_compiled(self, source: ModuleSource, needs_fuel: bool) -> Compiled | None:
        return self._cache.find(cache_key(source, needs_fuel))

    def _adopt(self, lease: Lease, source: ModuleSource, needs_fuel: bool, timeout: float) -> bool:
        """Takes the compiled form from the cache, if it is there and wasmtime takes it."""
        compiled = self.find_compiled(source, needs_fuel)
        if compiled is None:
            return False
        message = load_message(source, needs_fuel, "compiled", _evicted(lease)) | {"facts": compiled.facts}
        bounds = Bounds(timeout, OWN_COMPILE_MEMORY_MB * MIB)
        with contextlib.closing(compiled):
            reply = _ask(lease, message, b"", compiled.descriptor, bounds, timeout).message
        if reply.get("op") == "loaded":
            lease.worker.loaded[message["key"]] = 0
            return True
        self._cache.forget(cache_key(source, needs_fuel))
        return False

    def _compile(
        self, lease: Lease, source: ModuleSource, data: bytes, needs_fuel: bool, bounds: Bounds, timeout: float
    ) -> None:
        worker, was_clean = lease.worker, lease.worker.is_clean
        worker.is_clean = was_clean and source.is_own
        artefact = os.memfd_create("warmcell-module") if was_clean else None
        try:
            message = load_message(source, needs_fuel, source.format, _evicted(lease))
            reply = _ask(lease, message, data, artefact, bounds, timeout).message
            facts = _checked_reply(reply, lease)
            worker.loaded[message["key"]] = 0
            if artefact is not None:
                self._cache.store(cache_key(source, needs_fuel), artefact, facts)
        finally:
            if artefact is not None:
                os.close(artefact)


def _compile_memory(source: ModuleSource) -> int:
    return (OWN_COMPILE_MEMORY_MB if source.is_own else COMPILE_MEMORY_MB) * MIB


def load_message(source: ModuleSource, needs_fuel: bool, form: str, drop: list[str]) -> dict[str, Any]:
    return {
        "op": "load",
        "key": loaded_key(source, needs_fuel),
        "format": form,
        "entry": source.entry,
        "fuel": needs_fuel,
        "host": source.is_own,
        "drop": drop,
        "rehearsal": list(source.rehearsal),
    }


def _evicted(lease: Lease) -> list[str]:
    loaded = lease.worker.loaded
    return [loaded.popitem(last=False)[0] for _ in range(max(0, len(loaded) - _MOST_LOADED + 1))]


def _ask(
    lease: Lease, message: dict[str, Any], blob: bytes, descriptor: int | None, bounds: Bounds, timeout: float
) -> Frame:
    worker = lease.worker
    try:
        worker.channel.send(message, blob, [] if descriptor is None else [descriptor], timeout=bounds.seconds)
        return Conversation(worker, bounds).wait()
    except Overstayed:
        raise ExecutionTimeout(timeout) from None
    except OverMemory:
        raise MemoryExceeded(bounds.memory_bytes // MIB) from None
    except (WorkerDied, ProtocolViolation):
        raise lease.explain_death("loading the module") from None


def _checked_reply(reply: dict[str, Any], lease: Lease) -> dict[str, Any]:
    if reply.get("op") == "refused":
        lease.is_reusable = True
        raise InvalidRequest(str(reply.get("detail")), field="code")
    facts = reply.get("facts")
    if reply.get("op") != "loaded" or not isinstance(facts, dict):
        raise lease.explain_death("loading the module")
    return facts
