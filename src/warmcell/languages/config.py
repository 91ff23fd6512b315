"""ProcessConfig: which interpreters to use and how warm to keep them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass
from warmcell.core.types import check_text


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Paths default to what the host has: the base interpreter behind `sys.executable`, `node` and `rustc` on PATH.

    `preload` names Python modules to import once, before any run; with it, and without `python_path`, the guest gets
    the caller's own environment (`sys.executable` and its site-packages), since that is where those modules are.
    `pool_size` is how many warm cells may wait per kind of run (0: none, every run is made on demand).
    """

    python_path: str | os.PathLike[str] | None = None
    node_path: str | os.PathLike[str] | None = None
    rustc_path: str | os.PathLike[str] | None = None
    preload: Sequence[str] = ()
    pool_size: int = 4
    pool_min: int = 1

    def __post_init__(self) -> None:
        for name in ("python_path", "node_path", "rustc_path"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_text(name, os.fspath(value)))
        if isinstance(self.preload, str):
            raise InvalidRequest("must be a list of module names, not one text", field="preload")
        object.__setattr__(self, "preload", tuple(check_text("preload", item) for item in self.preload))
        for name in ("pool_size", "pool_min"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 256:
                raise InvalidRequest("must be a whole number from 0 to 256", field=name)
