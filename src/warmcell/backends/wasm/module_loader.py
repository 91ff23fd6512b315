"""Loads modules into workers: from the cache, or by compiling them there, under limits.

Compiled code is cached only if the worker has never had guest code: a guest that took its worker over could otherwise
plant code for other modules. Large modules are therefore compiled in a clean worker only. A compiler bug that a module
triggers can corrupt that module's own cache entry and no other.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence

from warmcell.backends.wasm.channel import WorkerDied, WorkerTimedOut
from warmcell.backends.wasm.pool import Lease, WorkerPool, WorkerQuery
from warmcell.backends.wasm.run_request import ModuleSource
from warmcell.backends.wasm.worker_handle import PendingRequest, RequestLimits, WorkerOverMemory
from warmcell.cage.fast_imports import write_json
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, InvalidRequest, MemoryExceeded, SandboxError
from warmcell.core.light import LateLog
from warmcell.core.lines import one_line
from warmcell.core.records import dataclass
from warmcell.core.slow_steps import report_slow_step
from warmcell.core.types import MIB
from warmcell.guest.wasm.protocol import ProtocolViolation, encode_frame
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.ownership import Lock
from warmcell.lifetime.run import Run
from warmcell.toolbox.loader import open_shipped_module
from warmcell.toolbox.runtime import runtime_fingerprint
from warmcell.toolbox.signed_directory import SignedDirectory, SignedFile, Tampered, Unusable, cache_directory, seal
from warmcell.toolbox.small_digests import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_log = LateLog(__name__)
#: Larger modules get a clean worker, so that their compiled form can be cached.
_LARGE_BYTES = 64 * 1024
_MOST_LOADED = 64
_DIRECT, _COPIED = "direct", "copied"
COMPILE_MEMORY_MB = 1024
OWN_COMPILE_SECONDS = 600.0
OWN_COMPILE_MEMORY_MB = 8192
#: Limits on open files. The size counts too: callers decide how large their modules are.
_MAX_OPEN = 32
_MOST_OPEN_BYTES = 512 << 20
DEFAULT_MOST_BYTES = 1 << 30


class ModuleCache:
    """Compiled modules. Only code that a clean worker compiled is ever loaded.

    Thread-safe. An unusable cache behaves like an empty one: runs then compile each time.
    """

    def __init__(self, path: str | os.PathLike[str] | None, most_bytes: int = DEFAULT_MOST_BYTES) -> None:
        self._path, self._most_bytes = path, most_bytes
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


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A module to load. `timeout` is for a caller's module, which has the time of its run; our own have more."""

    source: ModuleSource
    needs_fuel: bool
    timeout: float = OWN_COMPILE_SECONDS

    @property
    def key(self) -> str:
        """The module's name inside a worker."""
        return self.source.loaded_names[self.needs_fuel]

    @property
    def cache_key(self) -> str:
        """Requests with the same key share compiled code."""
        source = self.source
        parts = [source.digest, source.entry, source.is_own, self.needs_fuel, *runtime_fingerprint()]
        return sha256(f"[{', '.join(map(write_json, parts))}]".encode()).hexdigest()

    @property
    def limits(self) -> RequestLimits:
        if self.source.is_own:
            return RequestLimits(OWN_COMPILE_SECONDS, OWN_COMPILE_MEMORY_MB * MIB)
        return RequestLimits(self.timeout, COMPILE_MEMORY_MB * MIB)

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


class ModuleLoader:
    """Thread-safe, if each lease is used by one thread."""

    def __init__(self, pool: WorkerPool, cache: ModuleCache) -> None:
        self._pool, self._cache = pool, cache
        # One at a time: it takes seconds, and those that waited find it in the cache. Entered only with a worker
        # leased: waiting for a worker inside could deadlock.
        self._compiling = FairSemaphore(1)
        self._prefetched: set[str] = set()
        #: How workers can get ready-made modules: the installed file itself, or a copy. A way that failed is removed.
        self._ways = [_DIRECT, _COPIED]

    def prefetch(self, load: LoadRequest) -> None:
        """On the first use of one of our own modules, reads and verifies it in a thread while the worker starts."""
        if load.source.is_own and (key := load.key) not in self._prefetched:
            self._prefetched.add(key)
            with contextlib.suppress(SandboxError):  # cannot start a thread: it is read when needed
                start_daemon(self._fill_cache, load, name="warmcell-wasm-prefetch")

    def _fill_cache(self, load: LoadRequest) -> None:
        # The run meets the same error and reports it.
        with contextlib.suppress(OSError, SandboxError):
            if (found := self.find_compiled(load)) is not None:
                found.close()

    def ensure(self, lease: Lease, load: LoadRequest, run: Run) -> None:
        """Makes the lease's worker have the module. May replace the worker."""
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
        self._compiling.acquire(run, OWN_COMPILE_SECONDS)
        try:
            if not self._adopt(lease, load):
                report_slow_step("compiling a toolbox module (once per user, about ten seconds)")
                self._compile(lease, load, data)
        finally:
            self._compiling.release()

    def warm(self, lease: Lease, load: LoadRequest, memory_bytes: int) -> None:
        """Loads one of our own modules if it is compiled, and makes the worker instantiate it for the first run."""
        if self._adopt(lease, load):
            _request(lease, load, {"op": "warm", "key": load.key, "memory_bytes": memory_bytes})

    def prepare_own(self, load: LoadRequest, run: Run) -> None:
        """Compiles one of our own modules into the cache. Raises `BackendBusy` if no worker is free now."""
        with Lease(self._pool, WorkerQuery(load.key, needs_clean=True), run, queue_timeout=0) as lease:
            self.ensure(lease, load, run)
            lease.is_reusable = True

    def find_compiled(self, load: LoadRequest) -> SignedFile | None:
        """The compiled module from the cache or the installation."""
        if not load.source.is_own or load.needs_fuel or not self._ways:
            return self._cache.find(load.cache_key)
        source, is_copied = load.source, self._ways[0] == _COPIED
        return self._cache.find(
            load.cache_key, lambda: open_shipped_module(source.digest, source.entry, is_copied=is_copied)
        )

    def _adopt(self, lease: Lease, load: LoadRequest) -> bool:
        """Loads the compiled module, if there is one and wasmtime accepts it."""
        ways = self._ways
        compiled = self.find_compiled(load)
        if compiled is None:
            return False
        message = load.message("compiled", _evict(lease)) | {"facts": compiled.facts}
        with contextlib.closing(compiled):
            reply = _request(lease, load, message, b"", [compiled.descriptor])
        if reply.get("op") == "loaded":
            lease.worker.loaded[load.key] = None
            return True
        self._cache.forget(load.cache_key)
        if compiled.is_shipped:
            self._ways = ways[1:]
            return self._adopt(lease, load)
        return False

    def _compile(self, lease: Lease, load: LoadRequest, data: bytes) -> None:
        worker, was_clean = lease.worker, lease.worker.is_clean
        worker.is_clean = was_clean and load.source.is_own
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        artefacts = [os.memfd_create("warmcell-module", flags)] if was_clean else []
        try:
            reply = _request(lease, load, load.message(load.source.format, _evict(lease)), data, artefacts)
            facts = _validate_facts(reply, lease, load)
            worker.loaded[load.key] = None
            if artefacts and reply.get("is_written") is True:
                with contextlib.suppress(OSError):  # the worker has mapped it for writing: it is not kept
                    # The worker may still have it open. Shrinking it while we read its mapping would end this program.
                    seal(artefacts[0])
                    self._cache.store(load.cache_key, artefacts[0], facts)
        finally:
            for descriptor in artefacts:
                os.close(descriptor)


def _evict(lease: Lease) -> list[str]:
    loaded = lease.worker.loaded
    return [loaded.popitem(last=False)[0] for _ in range(max(0, len(loaded) - _MOST_LOADED + 1))]


def _request(
    lease: Lease, load: LoadRequest, message: dict[str, Any], blob: bytes = b"", descriptors: Sequence[int] = ()
) -> dict[str, Any]:
    try:
        lease.send(encode_frame(message, blob), descriptors, seconds=load.limits.seconds)
        return PendingRequest(lease.worker, load.limits).wait().message
    except WorkerTimedOut:
        if load.source.is_own:
            raise ExecutionFailed("compiling a toolbox module timed out") from None
        raise ExecutionTimeout(load.timeout, phase="build") from None
    except WorkerOverMemory:
        if load.source.is_own:
            raise ExecutionFailed("compiling a toolbox module exceeded the memory limit") from None
        raise MemoryExceeded(load.limits.memory_bytes // MIB) from None
    except (WorkerDied, ProtocolViolation):
        raise lease.explain_death("loading the module") from None


def _validate_facts(reply: dict[str, Any], lease: Lease, load: LoadRequest) -> dict[str, Any]:
    if reply.get("op") == "refused":
        lease.is_reusable = True
        if load.source.is_own:
            _log.warning("a toolbox module was refused: %s", reply.get("detail"))
            raise ExecutionFailed("a toolbox module could not be compiled", hint="reinstall warmcell")
        raise InvalidRequest(one_line(str(reply.get("detail"))), field="code")
    facts = reply.get("facts")
    is_typed = isinstance(facts, dict) and all(isinstance(value, bool | str) for value in facts.values())
    if reply.get("op") != "loaded" or not is_typed:
        raise lease.explain_death("loading the module")
    return dict(facts or {})
