"""Gets a module into a worker: from its memory, from the cache, or by compiling it there, under limits.

What a worker compiled is kept on disk only when no guest had touched that worker before: a guest that took a worker
over could otherwise plant code for other modules. Large modules are therefore compiled in a clean worker only. A bug
in the compiler that a module triggers can spoil that module's own entry and no other.
"""

from __future__ import annotations

import contextlib
import os

from warmcell.backends.wasm.conversation import Bounds, Conversation, OverMemory
from warmcell.backends.wasm.frames import Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.lease import Lease
from warmcell.backends.wasm.module_cache import ModuleCache
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.pool import Wanted, WorkerPool
from warmcell.cage.light import write_json
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, InvalidRequest, MemoryExceeded, SandboxError
from warmcell.core.late_log import LateLog
from warmcell.core.records import dataclass
from warmcell.core.types import MIB
from warmcell.lifetime.fair_queue import FairQueue
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.run import Run
from warmcell.toolbox.ready_made import find_ready_made
from warmcell.toolbox.runtime import runtime_fingerprint
from warmcell.toolbox.signed_directory import SignedFile
from warmcell.toolbox.small_digests import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_log = LateLog(__name__)
#: Larger modules are worth a worker that nobody used, so that their compiled form can be kept.
_LARGE_BYTES = 64 * 1024
_MOST_LOADED = 64
_AS_IT_IS, _COPIED = "as it is", "copied"
COMPILE_MEMORY_MB = 1024
OWN_COMPILE_SECONDS = 600.0
OWN_COMPILE_MEMORY_MB = 8192


@dataclass(frozen=True, slots=True)
class Load:
    """A module to be loaded, and how long that may take. A caller's module has as long as its run; ours is our time."""

    source: ModuleSource
    needs_fuel: bool
    timeout: float = OWN_COMPILE_SECONDS

    @property
    def key(self) -> str:
        """The name of the loaded module inside a worker."""
        return self.source.loaded_names[self.needs_fuel]

    @property
    def cache_key(self) -> str:
        """Two requests share compiled code exactly when this is the same."""
        source = self.source
        parts = [source.digest, source.entry, source.is_own, self.needs_fuel, *runtime_fingerprint()]
        return sha256(f"[{', '.join(map(write_json, parts))}]".encode()).hexdigest()

    @property
    def bounds(self) -> Bounds:
        if self.source.is_own:
            return Bounds(OWN_COMPILE_SECONDS, OWN_COMPILE_MEMORY_MB * MIB)
        return Bounds(self.timeout, COMPILE_MEMORY_MB * MIB)

    def message(self, form: str, drop: list[str]) -> dict[str, Any]:
        return {
            "op": "load",
            "key": self.key,
            "format": form,
            "entry": self.source.entry,
            "fuel": self.needs_fuel,
            "host": self.source.is_own,
            "drop": drop,
            "rehearsal": list(self.source.rehearsal),
        }


class Loader:
    """Thread-safe, as far as leases are held by one thread each."""

    def __init__(self, pool: WorkerPool, cache: ModuleCache) -> None:
        self._pool = pool
        self._cache = cache
        # One at a time, since it takes seconds and who waits finds it done. The worker is leased by then: whoever held
        # this while waiting for a worker could wait for ever.
        self._compiling = FairQueue(1)
        self._looked_for: set[str] = set()
        #: How workers get files of the installation: as they are, or a copy; without the ways in which one could not
        #: use them.
        self._ways = [_AS_IT_IS, _COPIED]

    def look_ahead(self, load: Load) -> None:
        """Begins to read and check a module of ours, if this is its first use: meanwhile the worker can be started."""
        if load.source.is_own and (key := load.key) not in self._looked_for:
            self._looked_for.add(key)
            with contextlib.suppress(SandboxError):  # no thread to be had: it is read when it is needed
                start_daemon(self._look, load, name="warmcell-wasm-look")

    def _look(self, load: Load) -> None:
        # Whoever needs it meets the same problem and says what it is.
        with contextlib.suppress(OSError, SandboxError):
            if (found := self.find_compiled(load)) is not None:
                found.close()

    def ensure(self, lease: Lease, load: Load, run: Run) -> None:
        """After this the lease's worker, which may be another one then, has the module."""
        key = load.key
        if key in lease.worker.loaded:
            lease.worker.loaded.move_to_end(key)
            return
        if self._adopt(lease, load):
            return
        data = load.source.read()
        if len(data) > _LARGE_BYTES and not lease.worker.is_clean:
            lease.swap_for_clean()
        if not load.source.is_own:
            self._compile(lease, load, data)
            return
        self._compiling.enter(run, OWN_COMPILE_SECONDS)
        try:
            if not self._adopt(lease, load):
                _log.info("compiling a module of the toolbox, once on this machine")
                self._compile(lease, load, data)
        finally:
            self._compiling.leave()

    def warm(self, lease: Lease, load: Load, memory_bytes: int) -> None:
        """Loads a module of ours, if it was compiled before, and has an instance of it made for the first run."""
        if self._adopt(lease, load):
            _ask(lease, load, {"op": "warm", "key": load.key, "memory_bytes": memory_bytes}, b"", [])

    def prepare_own(self, load: Load, run: Run) -> None:
        """Makes sure that a module of ours is in the cache, with a worker that is free now, or raises `BackendBusy`."""
        with Lease(self._pool, Wanted(load.key, needs_clean=True), run, queue_timeout=0) as lease:
            self.ensure(lease, load, run)
            lease.is_reusable = True

    def find_compiled(self, load: Load) -> SignedFile | None:
        """What was compiled here, or came compiled with the installation."""
        if not load.source.is_own or load.needs_fuel or not self._ways:
            return self._cache.find(load.cache_key)
        source, is_copied = load.source, self._ways[0] == _COPIED
        return self._cache.find(
            load.cache_key, lambda: find_ready_made(source.digest, source.entry, is_copied=is_copied)
        )

    def _adopt(self, lease: Lease, load: Load) -> bool:
        """Takes the compiled form from the cache, if it is there and wasmtime takes it."""
        ways = self._ways
        compiled = self.find_compiled(load)
        if compiled is None:
            return False
        message = load.message("compiled", _evicted(lease)) | {"facts": compiled.facts}
        with contextlib.closing(compiled):
            reply = _ask(lease, load, message, b"", [compiled.descriptor])
        if reply.get("op") == "loaded":
            lease.worker.loaded[load.key] = None
            return True
        self._cache.forget(load.cache_key)
        if compiled.is_shipped:
            self._ways = ways[1:]
            return self._adopt(lease, load)
        return False

    def _compile(self, lease: Lease, load: Load, data: bytes) -> None:
        worker, was_clean = lease.worker, lease.worker.is_clean
        worker.is_clean = was_clean and load.source.is_own
        artefacts = [os.memfd_create("warmcell-module")] if was_clean else []
        try:
            reply = _ask(lease, load, load.message(load.source.format, _evicted(lease)), data, artefacts)
            facts = _checked_facts(reply, lease, load)
            worker.loaded[load.key] = None
            if artefacts and reply.get("is_written") is True:
                self._cache.store(load.cache_key, artefacts[0], facts)
        finally:
            for descriptor in artefacts:
                os.close(descriptor)


def _evicted(lease: Lease) -> list[str]:
    loaded = lease.worker.loaded
    return [loaded.popitem(last=False)[0] for _ in range(max(0, len(loaded) - _MOST_LOADED + 1))]


def _ask(lease: Lease, load: Load, message: dict[str, Any], blob: bytes, descriptors: list[int]) -> dict[str, Any]:
    try:
        lease.send(message, blob, descriptors, seconds=load.bounds.seconds)
        return Conversation(lease.worker, load.bounds).wait().message
    except Overstayed:
        if load.source.is_own:
            raise ExecutionFailed("compiling a module of the toolbox took too long") from None
        raise ExecutionTimeout(load.timeout, phase="build") from None
    except OverMemory:
        if load.source.is_own:
            raise ExecutionFailed("compiling a module of the toolbox took too much memory") from None
        raise MemoryExceeded(load.bounds.memory_bytes // MIB) from None
    except (WorkerDied, ProtocolViolation):
        raise lease.explain_death("loading the module") from None


def _checked_facts(reply: dict[str, Any], lease: Lease, load: Load) -> dict[str, Any]:
    if reply.get("op") == "refused":
        lease.is_reusable = True
        if load.source.is_own:
            _log.warning("a module of the toolbox was refused: %s", reply.get("detail"))
            raise ExecutionFailed("a module of the toolbox could not be compiled", hint="reinstall warmcell")
        raise InvalidRequest(str(reply.get("detail")), field="code")
    facts = reply.get("facts")
    is_typed = isinstance(facts, dict) and all(isinstance(value, bool | str) for value in facts.values())
    if reply.get("op") != "loaded" or not is_typed:
        raise lease.explain_death("loading the module")
    return dict(facts or {})
