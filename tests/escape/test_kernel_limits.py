"""Limits that the kernel keeps by refusing: the guest sees an errno, and the result says which limit it was."""

from __future__ import annotations

import pytest
from tests.escape.harness import Cage, Outcome

_THREADS = """
import os, threading, time
try:
    for _ in range(60):
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
except RuntimeError as error:
    print(error, flush=True)
"""

_PROCESSES = """
import os, time
try:
    for _ in range(60):
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
except BlockingIOError:
    print("refused", flush=True)
"""

_LATER = """
import os, subprocess, threading, time
for _ in range(40):
    subprocess.run(["true"])
try:
    for _ in range(60):
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
except RuntimeError as error:
    print(error, flush=True)
    time.sleep(4)  # only a look at this moment tells, and the watcher may be late
"""


def _limits(outcome: Outcome) -> list[tuple[str, str, str]]:
    denials = outcome.result.denials
    return [(denial.kind, denial.what, denial.rule) for denial in denials if denial.rule.startswith("limits.")]


@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(_THREADS, id="threads, then at once the end"),
        pytest.param(_THREADS + "time.sleep(0.3)", id="threads, then the end"),
        pytest.param(_PROCESSES, id="processes that are left behind"),
        pytest.param(_PROCESSES + "os.kill(0, 9)", id="processes, and all of them killed"),
        pytest.param(_LATER, id="threads after many processes"),
    ],
)
def test_too_many_processes_are_told(cage: Cage, code: str) -> None:
    outcome = cage.run(code, processes=16)
    assert outcome.stdout in ("can't start new thread\n", "refused\n")
    assert _limits(outcome) == [("processes", "more than 16 processes", "limits.processes")]
    (hint,) = {denial.hint for denial in outcome.result.denials}
    assert hint == "raise it with Limits(processes=...)"


@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import subprocess\nfor _ in range(60): subprocess.run(['true'])", id="one after another"),
        pytest.param(_THREADS.replace("60", "8"), id="few at once"),
        pytest.param('raise RuntimeError("can\'t start new thread")', id="words"),
    ],
)
def test_who_stays_below_is_not_blamed(cage: Cage, code: str) -> None:
    assert _limits(cage.run(code, processes=16)) == []


_FILL = """
import errno, os
os.makedirs("/tmp/many")
def fill():
    {fill}
try:
    fill()
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize(
    "fill",
    [
        pytest.param("open('/tmp/one', 'wb').write(bytes(64 << 20))", id="one large file"),
        pytest.param("[open(f'/dev/shm/{n}', 'wb').write(bytes(1 << 20)) for n in range(64)]", id="many"),
        pytest.param("[open(f'/tmp/many/{n}', 'w').close() for n in range(100_000)]", id="no name left"),
    ],
)
def test_a_full_disk_is_told(cage: Cage, fill: str) -> None:
    outcome = cage.run(_FILL.format(fill=fill), disk_mb=16)
    assert outcome.stdout == "ENOSPC\n"
    assert _limits(outcome) == [("disk", "more than 16 MB", "limits.diskMb")]


@pytest.mark.claim("WC-RX-3")
def test_a_disk_with_room_is_not_blamed(cage: Cage) -> None:
    code = "open('/tmp/most', 'wb').write(bytes(15 << 20))\nraise OSError(28, 'No space left on device')"
    assert _limits(cage.run(code, disk_mb=16)) == []
