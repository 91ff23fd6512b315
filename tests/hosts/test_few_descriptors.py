"""More at once than descriptors allow: runs wait for one another, what idles makes room, and the limit is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from tests.hosts.conditions import limited

from warmcell import ProcessBackend, ProcessConfig
from warmcell.core.errors import SandboxError
from warmcell.lifetime.descriptors import DescriptorsExhausted, told_shortage
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.lifetime.scarcity import Scarcity

#: A few backends under a small limit, as two hundred are under the usual one.
PROGRAM = """
import asyncio, json, os, resource, sys, time
from warmcell import ExecRequest, ProcessBackend, SandboxError
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
request = ExecRequest("python", "import time; time.sleep(0.05); print(42)", 60)
ProcessBackend().execute_blocking(request)  # what is opened once for the program is open
resource.setrlimit(resource.RLIMIT_NOFILE, (96, hard))

async def at_once(backends, times):
    runs = [backend.execute(request) for backend in backends for _ in range(times)]
    return [getattr(result, "stdout", repr(result)) for result in await asyncio.gather(*runs, return_exceptions=True)]

backends = [ProcessBackend() for _ in range(8)]
said = [backend.execute_blocking(request).stdout for backend in backends]
time.sleep(0.5)  # by now cells wait, as many as may
for file in [open("/dev/null") for _ in range(24)]:  # the program has files of its own to open
    file.close()
said += asyncio.run(at_once(backends, 1))
said += asyncio.run(at_once(backends[:1], 24))
(zygote,) = backends[0].zygote_pids
with open(f"/proc/{zygote}/limits") as file:  # our own processes have as many as the hard limit allows
    said.append(next(line.split()[3] for line in file if line.startswith("Max open files")) == str(hard))
for backend in backends:
    backend.close()
print(json.dumps(said))
"""


@pytest.mark.needs("linux", "user namespaces")
def test_runs_wait_and_idle_backends_make_room() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [*["42\n"] * 40, True]


@pytest.mark.needs("linux", "user namespaces")
async def test_a_hundred_live_cages_fit_below_the_usual_limit() -> None:
    async with ProcessBackend(ProcessConfig(pool_size=0, pool_min=0)) as backend:
        first = await backend.live_cage()
        (await first.start_soon(["true"])).ended.result(30)
        before = len(os.listdir("/proc/self/fd"))
        second = await backend.live_cage()
        (await second.start_soon(["true"])).ended.result(30)
        assert len(os.listdir("/proc/self/fd")) - before <= 7  # and two directories, where it is a sandbox's
        first.close()
        second.close()


class Spares:
    """Something with so much to let go of."""

    def __init__(self, count: int) -> None:
        self.count = count

    def shed(self) -> bool:
        self.count -= 1
        return self.count >= 0


def failing(times: int) -> tuple[list[int], object]:
    tries: list[int] = []

    def attempt() -> str:
        tries.append(1)
        if len(tries) <= times:
            raise OSError(24, "Too many open files")
        return "done"

    return tries, attempt


def test_what_idles_is_let_go_of_until_it_is_enough() -> None:
    scarcity, spares = Scarcity(), Spares(5)
    scarcity.hold(spares)
    tries, attempt = failing(3)
    assert scarcity.retried(attempt, Run(), 60) == "done"  # type: ignore[type-var]
    assert (len(tries), spares.count) == (4, 2)


def test_nobody_is_waited_for_who_is_not_there() -> None:
    scarcity = Scarcity()
    scarcity.begun()  # the one who asks
    tries, attempt = failing(99)
    started = time.monotonic()
    with pytest.raises(DescriptorsExhausted, match="RLIMIT_NOFILE") as caught:
        scarcity.retried(attempt, Run(), 60)  # type: ignore[type-var]
    assert time.monotonic() - started < 30 and len(tries) == 1
    assert isinstance(caught.value, SandboxError) and "ulimit -n" in str(caught.value.hint)


def test_the_end_of_another_run_is_waited_for() -> None:
    scarcity = Scarcity()
    scarcity.begun()
    scarcity.begun()
    tries, attempt = failing(1)
    timer = threading.Timer(0.2, scarcity.ended)
    timer.start()
    assert scarcity.retried(attempt, Run(), 60) == "done"  # type: ignore[type-var]
    assert len(tries) == 2
    timer.join()


def test_who_waits_can_be_cancelled() -> None:
    scarcity, run = Scarcity(), Run()
    scarcity.begun()
    scarcity.begun()
    _, attempt = failing(99)
    timer = threading.Timer(0.2, run.cancel)
    timer.start()
    with pytest.raises(RunCancelled):
        scarcity.retried(attempt, run, 60)  # type: ignore[type-var]
    timer.join()


def test_another_trouble_is_not_tried_again() -> None:
    def attempt() -> None:
        raise PermissionError(13, "no")

    with pytest.raises(PermissionError):
        Scarcity().retried(attempt, Run(), 60)


@pytest.mark.needs("linux")
@pytest.mark.parametrize("limit", [8, 10, 12])
def test_doctor_names_the_limit_when_it_can_open_next_to_nothing(limit: int) -> None:
    command = [*limited(f"-n {limit}"), sys.executable, "-m", "warmcell", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert f"RLIMIT_NOFILE is {limit}" in done.stdout + done.stderr, done
    assert "raise it (`ulimit -n 65536`" in done.stdout + done.stderr
    assert done.returncode and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("last_words", "told"),
    [
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "this user has as many processes"),
        ("OS can't spawn worker thread: Resource temporarily unavailable (os error 11)", "this user has as many"),
        ("OSError: [Errno 24] Too many open files: '/x'", "this process has as many open descriptors"),
        ("MemoryError: [Errno 12] Cannot allocate memory", "there is no memory for it"),
        ("ValueError: something else", ""),
        ("", ""),
    ],
)
def test_what_a_process_of_ours_died_for_want_of_is_told(last_words: str, told: str) -> None:
    """And not only in a log."""
    found = told_shortage(last_words, "start it")
    assert bool(found) == bool(told)
    if found is not None:
        assert found.fault == "host" and found.message.startswith(f"could not start it: {told}") and found.hint
