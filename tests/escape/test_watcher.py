"""Cells of an ordinary user, whose limits one watcher keeps for all of them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.escape.harness import Cage

from warmcell.policy.builder import SandboxPolicyBuilder


@pytest.mark.claim("WC-RX-5")
def test_guests_that_end_together_are_all_reported_on(cage: Cage, tmp_path: Path) -> None:
    """Each has been looked at, so that the watcher has a last word on it; these words come in one after another."""
    # Writable host paths are watched everywhere, a cgroup or not.
    backend = cage.backend(SandboxPolicyBuilder().allow_read_write(tmp_path).allow_process_spawn().build())
    cage.run("print('warm')", backend=backend)
    for _ in range(4):
        until = time.time() + 1.5
        code = f"import time; time.sleep(max(0, {until} - time.time())); print('end')"
        with ThreadPoolExecutor(8) as threads:
            ends = list(threads.map(lambda _, code=code: cage.run(code, backend=backend, timeout=20), range(8)))
        assert [(end.status, end.stdout) for end in ends] == [("ended", "end\n")] * 8
