"""More at once than descriptors allow: runs wait for one another, what idles makes room, and the limit is named."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading

import pytest
from tests.hosts.conditions import with_limit

from warmcell import ExecRequest, ProcessBackend, ProcessConfig
from warmcell.core.errors import SandboxError
from warmcell.lifetime.descriptor_pressure import DescriptorPressure
from warmcell.lifetime.descriptors import DescriptorsExhausted, shortage_from_message
from warmcell.lifetime.run import Run, RunCancelled

#: A few backends under a small limit, as two hundred are under the usual one.
PROGRAM = """
import asyncio, json, os, resource, sys, time
from warmcell import ExecRequest, ProcessBackend, SandboxError
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
request = ExecRequest("python", "import time; time.sleep(0.05); print(42)", 60)
ProcessBackend().execute_blocking(request)  # what is opened once for the program is open
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))  # the hard limit too: a soft one would be raised

async def at_once(backends, times):
    runs = [backend.execute(request) for backend in backends for _ in range(times)]
    return [getattr(result, "stdout", repr(result)) for result in await asyncio.gather(*runs, return_exceptions=True)]

backends = [ProcessBackend() for _ in range(8)]
said = [backend.execute_blocking(request).stdout for backend in backends]
counts = [0]
while len(counts) < 600 and counts[-16:] != counts[-1:] * 16:  # until cells wait, as many as may
    time.sleep(0.05)
    counts.append(len(os.listdir("/proc/self/fd")))
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
def test_a_crowd_runs_without_descriptors_to_load_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(backend: ProcessBackend) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("warmcell.backends.process.backend.CROWD", -1)
    monkeypatch.setattr(ProcessBackend, "extra_supervisors", property(load))
    with ProcessBackend() as backend:
        assert backend.execute_blocking(ExecRequest("python", "print(42)", 30)).stdout == "42\n"


@pytest.mark.needs("linux", "user namespaces")
async def test_a_hundred_live_cages_fit_below_the_usual_limit() -> None:
    async with ProcessBackend(ProcessConfig(pool_size=0, pool_min=0)) as backend:
        first = await backend.live_cage()
        (await first.start_async(["true"])).ended.result(30)
        before = len(os.listdir("/proc/self/fd"))
        second = await backend.live_cage()
        (await second.start_async(["true"])).ended.result(30)
        assert len(os.listdir("/proc/self/fd")) - before <= 7  # and two directories, where it is a sandbox's
        first.close()
        second.close()


#: More live sandboxes than the limit has room for. Prints how many, the error, and what is open before and after.
LIVE_PROGRAM = """
import json, os, sys
from warmcell import Sandbox, SandboxError
def is_open():
    return len(os.listdir("/proc/self/fd"))
with Sandbox() as first:  # opens what the program needs once
    first.spawn(["true"]).wait()
before, boxes, error = is_open(), [], None
try:
    for _ in range(int(sys.argv[1])):
        boxes.append(Sandbox())
        boxes[-1].spawn(["sleep", "60"])
except SandboxError as caught:
    error = [caught.code, caught.fault, caught.retryable]
for box in boxes:
    box.destroy()
print(json.dumps([len(boxes), error, is_open() - before]))
"""


def live_sandboxes(limit: str, count: int) -> list[object]:
    command = [*with_limit(limit), sys.executable, "-c", LIVE_PROGRAM, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.needs("linux", "user namespaces")
def test_the_soft_limit_is_raised_before_it_is_met() -> None:
    opened, error, left = live_sandboxes("-Sn 200", 24)
    assert (opened, error) == (24, None) and int(str(left)) <= 2


@pytest.mark.needs("linux", "user namespaces")
def test_the_hard_limit_is_a_busy_host_and_leaves_nothing_open() -> None:
    opened, error, left = live_sandboxes("-n 200", 40)
    assert error == ["sandbox.backend_busy", "host", True]
    assert 5 < int(str(opened)) < 40 and int(str(left)) <= 2


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
    descriptor_pressure, spares = DescriptorPressure(), Spares(5)
    descriptor_pressure.register(spares)
    tries, attempt = failing(3)
    assert descriptor_pressure.retry(attempt, Run(), 60) == "done"  # type: ignore[type-var]
    assert (len(tries), spares.count) == (4, 2)


def test_nobody_is_waited_for_who_is_not_there() -> None:
    descriptor_pressure = DescriptorPressure()
    descriptor_pressure.run_started()  # the one who asks
    tries, attempt = failing(99)
    with pytest.raises(DescriptorsExhausted, match="RLIMIT_NOFILE") as caught:
        descriptor_pressure.retry(attempt, Run(), 600)  # type: ignore[type-var]
    assert len(tries) == 1
    assert isinstance(caught.value, SandboxError) and "ulimit -n" in str(caught.value.hint)


def test_the_end_of_another_run_is_waited_for() -> None:
    descriptor_pressure = DescriptorPressure()
    descriptor_pressure.run_started()
    descriptor_pressure.run_started()
    tries, attempt = failing(1)
    timer = threading.Timer(0.2, descriptor_pressure.run_ended)

    def attempt_beside_another() -> object:
        if not tries:  # an end before the first attempt would be no reason for a second one
            timer.start()
        return attempt()  # type: ignore[operator]

    assert descriptor_pressure.retry(attempt_beside_another, Run(), 60) == "done"
    assert len(tries) == 2
    timer.join()


def test_who_waits_can_be_cancelled() -> None:
    descriptor_pressure, run = DescriptorPressure(), Run()
    descriptor_pressure.run_started()
    descriptor_pressure.run_started()
    _, attempt = failing(99)
    timer = threading.Timer(0.2, run.cancel)
    timer.start()
    with pytest.raises(RunCancelled):
        descriptor_pressure.retry(attempt, run, 60)  # type: ignore[type-var]
    timer.join()


def test_another_trouble_is_not_tried_again() -> None:
    def attempt() -> None:
        raise PermissionError(13, "no")

    with pytest.raises(PermissionError):
        DescriptorPressure().retry(attempt, Run(), 60)


@pytest.mark.needs("linux")
@pytest.mark.parametrize("limit", [8, 10, 12])
def test_doctor_names_the_limit_when_it_can_open_next_to_nothing(limit: int) -> None:
    command = [*with_limit(f"-n {limit}"), sys.executable, "-m", "warmcell", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert f"RLIMIT_NOFILE is {limit}" in done.stdout + done.stderr, done
    assert "raise it (`ulimit -n 65536`" in done.stdout + done.stderr
    assert done.returncode and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("last_words", "told"),
    [
        (
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
            "too many processes and threads for this user",
        ),
        (
            "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)",
            "too many processes and threads",
        ),
        ("OSError: [Errno 24] Too many open files: '/x'", "too many open descriptors in this process"),
        ("MemoryError: [Errno 12] Cannot allocate memory", "out of memory"),
        ("ValueError: something else", ""),
        ("", ""),
    ],
)
def test_what_a_process_of_ours_died_for_want_of_is_told(last_words: str, told: str) -> None:
    """And not only in a log."""
    found = shortage_from_message(last_words, "start it")
    assert bool(found) == bool(told)
    if found is not None:
        assert found.fault == "host" and found.message.startswith(f"could not start it: {told}") and found.hint
