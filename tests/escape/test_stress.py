"""The supervisor survives anything: many misbehaving runs leave descriptors, processes and memory where they were."""

from __future__ import annotations

import gc
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from tests.escape.harness import Cage, memory
from tests.helpers import eventually

from warmcell.core.errors import SandboxError
from warmcell.core.types import ExecRequest, Limits

_RUNS = int(os.environ.get("WARMCELL_STRESS_RUNS", "200"))

_BAD = (
    ("python", "import os; os.kill(os.getpid(), 9)"),
    ("python", "import os; os.abort()"),
    ("python", "import os; os._exit(3)"),
    ("python", "1/0"),
    ("python", "import time; time.sleep(9)"),
    ("python", "while True: pass"),
    (
        "python",
        "import os\nfor _ in range(40):\n    try: os.fork()\n    except OSError: break\nimport time; time.sleep(9)",
    ),
    ("python", "x = [bytearray(b'x') * (1 << 20) for _ in range(200)]"),
    ("python", "import os; os.close(0); os.close(1); os.close(2)"),
    ("python", "import os\nwhile True: os.write(1, b'x' * 65536)"),
    ("python", "import os; os.kill(-1, 9)"),
    ("python", "import os; os.fork() or os.setsid() or __import__('time').sleep(9)"),
    ("python", "import ctypes; ctypes.string_at(0)"),
    ("python", "import os, shutil; shutil.rmtree('/code', ignore_errors=True); os.chdir('/tmp'); os.mkdir('x' * 200)"),
    ("python", "print('\\udcff'.encode('utf-8', 'surrogateescape'))\nopen('/tmp/x', 'wb').write(bytes(64 << 20))"),
    ("python", "import os; [os.pipe() for _ in range(9999)]"),
    ("command", "yes & yes >&2 & exit 0"),
    ("command", "kill -STOP $$"),
    ("command", "exec cat /dev/urandom"),
    ("command", "definitely-not-a-program"),
)


def _misbehave(cage: Cage, number: int) -> None:
    language, code = _BAD[number % len(_BAD)]
    limits = Limits(memory_mb=96, processes=24, disk_mb=16, output_bytes=10_000, open_files=256)
    stdin = b"x" * random.choice((0, 10, 300_000))
    request = ExecRequest(language, code, 0.25, stdin, limits=limits)  # type: ignore[arg-type]
    try:
        cage.default.execute_blocking(request)
    except SandboxError:
        return


def _count_open(pid: int) -> int:
    """Without network namespaces, of which a manager keeps some for later cells."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            count += not os.readlink(f"/proc/{pid}/fd/{name}").startswith("net:")
    return count


def _fewest_open(pid: int) -> int:
    """Of a second: what it keeps for kinds of cells that came before, and nothing of runs that are just ending."""
    counts = []
    for _ in range(20):
        counts.append(_count_open(pid))
        time.sleep(0.05)
    return min(counts)


@pytest.mark.attack("RX-01")
@pytest.mark.claim("WC-RX-5")
def test_many_misbehaving_runs_leave_nothing(cage: Cage) -> None:
    """The fixture compares before and after; memory must not grow with the number of runs."""
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: _misbehave(cage, number), range(40)))
        gc.collect()
        after_some = memory("VmRSS")
        (manager,) = cage.default._launcher.pool.zygote_pids()
        open_after_some = _fewest_open(manager)
        list(threads.map(lambda number: _misbehave(cage, number), range(_RUNS)))
    gc.collect()
    assert memory("VmRSS") - after_some < 8 << 20
    assert cage.default._launcher.pool.zygote_pids() == [manager]
    assert eventually(lambda: _count_open(manager) <= open_after_some + 2)
