"""Any order of starting, writing, signalling, killing and waiting: what is said of processes stays true."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from warmcell import Process, PtySize, Sandbox, errors

pytestmark = pytest.mark.needs("linux", "user namespaces")


class Processes(RuleBasedStateMachine):
    """Every process echoes lines, and ends at "end N" with that status."""

    PROGRAM = 'while read -r word rest; do case $word in end) exit "$rest";; *) echo "$word";; esac; done'
    processes = Bundle("processes")
    sandbox: Sandbox

    def __init__(self) -> None:
        super().__init__()
        #: Those that have ended, as far as they were waited for, with their exit codes.
        self.ended: dict[int, int] = {}
        self.running: set[int] = set()

    @rule(target=processes, pty=st.sampled_from([None, PtySize(80, 24)]))
    def start(self, pty: PtySize | None) -> Process:
        process = self.sandbox.spawn(self.PROGRAM, pty=pty)
        assert process.is_running
        self.running.add(process.pid)
        self.ended.pop(process.pid, None)
        return process

    @rule(process=processes, word=st.sampled_from(["alpha", "beta"]))
    def write(self, process: Process, word: str) -> None:
        if process.pid in self.running:
            process.write(f"{word}\n")
        else:
            with pytest.raises(errors.InvalidRequest):
                process.write(f"{word}\n")

    @rule(process=processes)
    def attach(self, process: Process) -> None:
        assert self.sandbox.attach(process.pid).is_running == (process.pid in self.running)

    @rule(process=processes, code=st.integers(0, 99))
    def end(self, process: Process, code: int) -> None:
        if process.pid in self.running:
            process.write(f"end {code}\n")
            assert process.wait(60).exit_code == code
            self._note(process.pid, code)

    @rule(process=processes)
    def hang_up(self, process: Process) -> None:
        process.signal(1)
        if process.pid in self.running:
            assert process.wait(60).exit_code == 129
            self._note(process.pid, 129)

    @rule(process=consumes(processes))
    def kill(self, process: Process) -> None:
        process.kill()
        result = process.wait(60)
        assert result.exit_code == (137 if process.pid in self.running else self.ended[process.pid])
        self._note(process.pid, result.exit_code)

    def _note(self, pid: int, code: int) -> None:
        self.running.discard(pid)
        self.ended[pid] = code

    @invariant()
    def what_is_listed_is_so(self) -> None:
        listed = {info.pid: info for info in self.sandbox.processes()}
        assert {pid for pid, info in listed.items() if info.is_running} == self.running
        assert {pid: listed[pid].exit_code for pid in self.ended if pid in listed}.items() <= self.ended.items()

    def teardown(self) -> None:
        for pid in self.running:
            self.sandbox.attach(pid).kill()


def test_processes_in_any_order() -> None:
    with Sandbox() as sandbox:
        Processes.sandbox = sandbox
        run_state_machine_as_test(Processes, settings=settings(max_examples=15, stateful_step_count=15, deadline=None))
