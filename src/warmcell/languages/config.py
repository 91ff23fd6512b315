"""ProcessConfig: which interpreters to use, and how many cells to keep warm."""

from __future__ import annotations

import os
from collections.abc import Sequence

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass
from warmcell.core.request_checks import check_kind, check_whole
from warmcell.core.types import EffectiveLimits, Limits, check_text, check_timeout

_FEWEST_AT_ONCE = 16
_PER_PROCESSOR = 8


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Paths default to what the host has: the base interpreter behind `sys.executable`, `node` and `rustc` on PATH.

    `preload` names Python modules to import once, before any run; with it, and without `python_path`, the guest gets
    the caller's own environment (`sys.executable` and its site-packages), where those modules are. `pool_size` is how
    many warm cells may wait per kind of run (0: none, every cell is made on demand). `max_concurrency` is how many runs
    may go on at once (None: from the processors); the rest wait in order, each for at most `queue_timeout` seconds,
    then raise `BackendBusy`. Compilers have limits of their own, whatever the program may use: `build_limits`, and in
    `build` also `build_timeout` (in `execute` the request's timeout covers both). `gpu_concurrency` is how many runs
    and live cages of this user may have the same GPU at a time; 1 keeps their timings apart.
    """

    python_path: str | os.PathLike[str] | None = None
    node_path: str | os.PathLike[str] | None = None
    rustc_path: str | os.PathLike[str] | None = None
    preload: Sequence[str] = ()
    pool_size: int = 4
    pool_min: int = 1
    max_concurrency: int | None = None
    queue_timeout: float = 60.0
    build_timeout: float = 60.0
    build_limits: Limits = Limits(memory_mb=1024, disk_mb=512)
    gpu_concurrency: int = 1

    def __post_init__(self) -> None:
        for name in ("python_path", "node_path", "rustc_path"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_text(name, os.fspath(value)))
        if isinstance(self.preload, str):
            raise InvalidRequest("must be a list of module names, not one text", field="preload")
        object.__setattr__(self, "preload", tuple(check_text("preload", item) for item in self.preload))
        check_whole("pool_size", self.pool_size, 0, 256)
        check_whole("pool_min", self.pool_min, 0, 256)
        check_whole("gpu_concurrency", self.gpu_concurrency, 1, 256)
        if self.max_concurrency is not None:
            check_whole("max_concurrency", self.max_concurrency, 1, 1 << 16)
        for name in ("queue_timeout", "build_timeout"):
            object.__setattr__(self, name, check_timeout(getattr(self, name), name))
        check_kind("build_limits", self.build_limits, Limits)

    @property
    def limits_of_builds(self) -> EffectiveLimits:
        said = {name: getattr(self.build_limits, name) for name in Limits.__slots__}
        return EffectiveLimits(**{name: value for name, value in said.items() if value is not None})

    @property
    def most_at_once(self) -> int:
        """Many more than processors, because most guests wait most of the time; bounded, because each takes processes
        and descriptors, and because guests that compute must not starve one another into timeouts.
        """
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.max_concurrency or _FEWEST_AT_ONCE + _PER_PROCESSOR * processors
