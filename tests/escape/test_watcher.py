"""Cells of an ordinary user, whose limits one watcher keeps for all of them."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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


@pytest.mark.claim("WC-RX-2")
def test_sockets_of_the_host_program_are_not_the_guests_memory(cage: Cage) -> None:
    """The manager starts a process in each cell that ends at its process limit. It shows the host's sockets."""
    pairs = [socket.socketpair() for _ in range(1500)]
    backend = cage.backend(SandboxPolicyBuilder().allow_process_spawn().build())
    try:
        with ThreadPoolExecutor(8) as threads:
            run = partial(cage.run, language="command", backend=backend, memory_mb=64, processes=4, timeout=20)
            ends = list(threads.map(run, ["echo a | cat | wc -l"] * 64))
        assert [end.status for end in ends] == ["ended"] * 64
        assert max(end.result.usage.peak_memory_bytes for end in ends) < 64 << 20
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
