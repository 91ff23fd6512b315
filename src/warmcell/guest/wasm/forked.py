"""The worker inside a zygote: imported once, so that each worker starts as a fork with everything loaded.

Nothing of wasmtime is called before the fork: each worker makes its own engines, stores and random state.
"""

from __future__ import annotations

import os

from wasm.bindings_on_demand import NAME, use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Below the directory of packages: part of the package `warmcell-toolbox`.
_READY_MADE = "warmcell_toolbox/ready_made"


def prepare(packages: str, is_for_one: bool) -> None:
    """Runs in the zygote. `is_for_one`: it will fork a single worker, so load only what that needs."""
    if is_for_one:
        use(os.path.join(packages, _READY_MADE, NAME), os.path.join(packages, "wasmtime"))
    __import__("wasm.worker")


def warm_up() -> None:
    """Nothing to warm up: no work of a worker may happen before the fork."""


def reset_state() -> None:
    """Nothing to forget: the imports contain nothing of the host."""


def run(_job: Any) -> None:
    """Runs in the finished cage, with the supervisor at descriptor 0. Never returns."""
    from wasm.worker import main

    os.environ.clear()
    main()
