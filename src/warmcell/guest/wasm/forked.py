"""The worker as a zygote has it: loaded once, so that each worker begins as a copy that has nothing left to load.

Nothing of wasmtime is called before the fork: what its engines, stores and random numbers are made of is made in each
worker.
"""

from __future__ import annotations

import os

from wasm.bindings_on_demand import NAME, use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_READY_MADE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../toolbox/ready_made")


def prepare(packages: str, is_for_one: bool) -> None:
    """In the zygote. `is_for_one`: of what takes long to load it needs no more than one worker does."""
    if is_for_one:
        use(os.path.join(_READY_MADE, NAME), os.path.join(packages, "wasmtime"))
    __import__("wasm.worker")


def warm_up() -> None:
    """Nothing that a worker does could be undone before the fork."""


def forget_the_zygote() -> None:
    """There is nothing of the host in what was loaded."""


def run(_job: Any) -> None:
    """In the finished cage, with the supervisor at descriptor 0. Never returns."""
    from wasm.worker import main

    os.environ.clear()
    main()
