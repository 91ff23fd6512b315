"""Output of ended processes is freed when its bounds say so, and not with the next garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from tests.helpers import eventually

from warmcell import Sandbox
from warmcell.sessions.processes import LiveProcess

pytestmark = pytest.mark.needs("linux", "user namespaces")

LISTED = 100
Find = Callable[[], list[LiveProcess]]


@pytest.fixture
def new_processes() -> Iterator[Find]:
    """Finds what has been made since, and is not freed, without a garbage collection in between."""
    gc.collect()
    earlier = [found for found in gc.get_objects() if isinstance(found, LiveProcess)]
    was_enabled = gc.isenabled()
    gc.disable()

    def find() -> list[LiveProcess]:
        alive = [found for found in gc.get_objects() if isinstance(found, LiveProcess)]
        return [found for found in alive if not any(found is other for other in earlier)]

    yield find
    if was_enabled:
        gc.enable()


def test_a_closed_sandbox_keeps_no_process(new_processes: Find) -> None:
    with Sandbox(live=True) as sandbox:
        assert sandbox.sh("echo 1; sleep 0").stdout == "1\n"
        sandbox.spawn(["cat"])
        assert len(new_processes()) == 2
    assert eventually(lambda: not new_processes())


def test_no_more_are_kept_than_are_listed_whatever_their_timeouts(new_processes: Find) -> None:
    with Sandbox(live=True) as sandbox:
        for _ in range(LISTED + 5):
            sandbox.sh("echo 1", timeout=3600)
        assert len(sandbox.processes()) == LISTED
        assert eventually(lambda: len(new_processes()) <= LISTED)
