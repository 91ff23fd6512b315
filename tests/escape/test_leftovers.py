"""What a guest leaves running: its last output is kept, and it delays nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.weakened import Weakened
from tests.helpers import eventually

from warmcell.cage.plan import Watch
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import SandboxPolicy


@pytest.fixture(params=["keeper", "sleeper"])
def policy(request: pytest.FixtureRequest, weakened: Weakened, tmp_path: Path) -> SandboxPolicy | None:
    """Host paths in sight: init is one that keeps watch. Else, and with nothing to watch, it sleeps."""
    if request.param == "sleeper":
        weakened.without(watch=Watch())
        return None
    return SandboxPolicyBuilder().allow_read(tmp_path).allow_process_spawn().build()


@pytest.mark.claim("WC-RX-5")
def test_process_substitutions_are_heard(cage: Cage, policy: SandboxPolicy | None) -> None:
    backend = cage.backend(policy)
    for script, said in (
        ("printf x | tee >(cat) >(cat) >/dev/null", "xx"),
        ("printf x | tee >(sleep 0.02; cat) >(cat | cat | cat) >/dev/null", "xx"),
        ("echo one > >(sed s/one/two/)", "two\n"),
        ("(i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; echo late) & echo early", "early\nlate\n"),
    ):
        assert {cage.run(script, "command", backend=backend).stdout for _ in range(5)} == {said}


@pytest.mark.claim("WC-RX-5")
@pytest.mark.parametrize("left", ["sleep 300", "while :; do :; done", "(trap '' TERM HUP; sleep 300; sleep 300)"])
def test_what_stays_is_killed_soon(cage: Cage, policy: SandboxPolicy | None, left: str) -> None:
    backend = cage.backend(policy)
    cage.run("echo warm", "command", backend=backend)
    outcome = cage.run(f"{left} & {left} & echo done; exit 3", "command", backend=backend)
    assert (outcome.stdout, outcome.result.exit_code) == ("done\n", 3)  # held up, it would meet its timeout


@pytest.mark.claim("WC-RX-5")
def test_an_end_in_time_is_no_timeout(cage: Cage, policy: SandboxPolicy | None, weakened: Weakened) -> None:
    """The deadline comes while something that was left behind is still given its moment, here a long one."""
    weakened.line("linux/processes.py", "_BUSY_SECONDS = 0.5", "_BUSY_SECONDS = 60.0")
    backend = cage.backend(policy)
    code = """
import os, time
if os.fork() == 0:
    while True: pass
time.sleep(0.5)
print("done", flush=True)
"""
    outcome = cage.run(code, backend=backend, timeout=4.0)
    assert (outcome.status, outcome.stdout, outcome.result.exit_code) == ("ended", "done\n", 0)


@pytest.mark.claim("WC-KR-1")
def test_what_stays_is_refused_as_before(cage: Cage, policy: SandboxPolicy | None) -> None:
    """Somebody still answers for it: it neither hangs nor gets through."""
    code = """
import ctypes, os
if os.fork() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(20):
        assert libc.unshare(0x10000000) == -1 and ctypes.get_errno() == 1
    print("refused", flush=True)
    os._exit(0)
"""
    outcome = cage.run(code, backend=cage.backend(policy))
    assert outcome.stdout == "refused\n"
    assert [(denial.kind, denial.what) for denial in outcome.result.denials] == [("syscall", "unshare")]


@pytest.mark.claim("WC-RX-5")
def test_others_are_served_meanwhile(cage: Cage, policy: SandboxPolicy | None) -> None:
    backend = cage.backend(policy)
    left = "while :; do :; done & exit 0"
    for _ in range(3):
        cage.run(left, "command", backend=backend)
        assert cage.run("echo next", "command", backend=backend).stdout == "next\n"
    assert eventually(lambda: not _busy_shells())


def _busy_shells() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if "while :; do :; done & exit 0" in text:
            found.append(text)
    return found
