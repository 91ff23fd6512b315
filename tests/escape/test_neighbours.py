"""What a guest names freely, its processes and its sockets, is read by the processes that all guests share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.escape.harness import Cage

from warmcell.policy.builder import SandboxPolicyBuilder

_NAME = "import ctypes, fcntl, socket, time\nlibc = ctypes.CDLL(None)\nlibc.prctl(15, b'\\xff\\xfe', 0, 0, 0)\n"
_ATTACKS = {
    "lock": "file = open('/tmp/file', 'w')\nfor _ in range(50):\n    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    fcntl.flock(file, fcntl.LOCK_UN)",
    "watch": "watch = libc.inotify_init1(0)\nfor _ in range(20):\n    libc.inotify_add_watch(watch, b'/tmp', 2)",
    "socket": (
        "kept = [socket.socket(socket.AF_UNIX) for _ in range(40)]\nfor number, one in enumerate(kept):\n"
        "    one.bind(b'/tmp/%d\\n1 2 3 4 5 6 inode \\xff' % number)\n    one.listen(1)\ntime.sleep(1.5)"
    ),
}


@pytest.mark.attack("S3-02")
@pytest.mark.parametrize("what", _ATTACKS)
def test_names_that_are_no_text_end_no_neighbour(cage: Cage, what: str) -> None:
    """They ended the process that starts all guests, or the one that watches them."""
    backend = cage.backend(SandboxPolicyBuilder().allow_process_spawn().build())
    cage.run("print('warm')", backend=backend)
    with ThreadPoolExecutor(2) as threads:
        neighbours = [
            threads.submit(cage.run, "import time; time.sleep(3); print('end')", backend=backend, timeout=60)
            for _ in range(2)
        ]
        attack = cage.run(f"{_NAME}{_ATTACKS[what]}\nprint('done')", backend=backend, timeout=30)
        ends = [neighbour.result() for neighbour in neighbours]
    assert (attack.status, attack.stdout) == ("ended", "done\n"), attack
    assert [(end.status, end.stdout) for end in ends] == [("ended", "end\n")] * 2
