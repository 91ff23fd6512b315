"""What a shell session keeps, with its worker bare."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, until
from tests.sessions.bare import Cells, shell_worker, skip_time

from warmcell import errors
from warmcell.guest.live import trees
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.sessions.exchange import Listeners

pytestmark = pytest.mark.needs("linux")


def _waits_for_input(pid: int) -> bool:
    """Whether this shell sleeps and has no child."""
    stat, children = Path(f"/proc/{pid}/stat"), Path(f"/proc/{pid}/task/{pid}/children")
    return stat.read_text().rpartition(") ")[2].startswith("S") and not children.read_text()


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def _has_pending(pid: int, number: int) -> bool:
    pending = re.search(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return pending is not None and bool(int(pending[1], 16) >> (number - 1) & 1)


@pytest.fixture
def cells() -> Iterator[Cells]:
    cells = Cells(shell_worker())
    yield cells
    cells.close()


def test_directory_variables_functions_and_status_stay(cells: Cells) -> None:
    cells("cd /usr; n=5; export WORD=said; list=(1 'two words'); twice() { echo $(($1 * 2)); }; alias hi='echo hello'")
    result = cells('pwd; twice $n; env | grep ^WORD; echo "${list[1]}"')
    assert (result.stdout, result.value, result.error) == ("/usr\n10\nWORD=said\ntwo words\n", "0", None)
    failed = cells("(exit 7)")
    assert failed.value == "7" and failed.error is not None and failed.error.message == "exit status 7"
    assert cells("echo $?").stdout == "7\n"


@pytest.mark.parametrize("end", ["exit 3", "set -e; (exit 3); echo never"])
def test_what_ends_the_shell_does_not_end_the_session(cells: Cells, end: str) -> None:
    cells("cd /usr; n=5; twice() { echo $(($1 * 2)); }")
    ended = cells(f"echo before; {end}")
    assert (ended.stdout, ended.value) == ("before\n", "3")
    assert cells("set +e; echo $?; twice $n; pwd").stdout == "0\n10\n/usr\n"


@pytest.mark.parametrize(
    ("trap", "end"),
    [
        ("trap 'echo bye' EXIT", "exit 3"),
        ("trap 'echo bye' EXIT", "set -e; (exit 3); echo never"),
        ("trap 'echo bye; exit 3' EXIT", "exit 4"),
        ("trap 'echo bye; kill -9 $$' EXIT", "exit 3"),
        (":", "trap 'echo bye' EXIT; exit 3"),
        (":", "leave() { exit 3; }; trap 'false; echo bye' EXIT; set -e; leave"),
    ],
)
def test_a_cell_with_its_own_exit_trap_does_not_end_the_session(cells: Cells, trap: str, end: str) -> None:
    cells(f"n=5; {trap}")
    ended = cells(end)
    assert (ended.stdout, ended.value) == ("bye\n", "3")
    assert cells("set +e; echo $n; exit").stdout == "5\n"


def test_an_exit_trap_is_removed_and_subshells_have_their_own(cells: Cells) -> None:
    cells("trap 'echo bye' EXIT")
    cells("trap - EXIT")
    assert cells("(trap 'echo inner' EXIT; exit 2); echo $?; exit").stdout == "inner\n2\n"


@pytest.mark.parametrize("code", ["exit 1 2", "shift 1 2", "for i in 1; do break 1 2; done"])
def test_an_error_that_skips_the_rest_of_the_cell_is_reported(cells: Cells, code: str) -> None:
    failed = cells(f"n=5; {code}; echo never")
    assert (failed.stdout, failed.value) == ("", "1")
    assert cells("echo $n").stdout == "5\n"


def test_output_errors_and_input(cells: Cells) -> None:
    result = cells("echo out; echo err >&2; cat; read line || echo end; printf 'é'")
    assert (result.stdout, result.stderr) == ("out\nend\né", "err\n")
    missing = cells("not-there-at-all")
    assert missing.value == "127" and "not-there-at-all: command not found" in missing.stderr
    broken = cells("echo 'unclosed")
    assert broken.error is not None and "unexpected EOF" in broken.stderr
    assert cells("echo still").stdout == "still\n"


@pytest.mark.parametrize("code", ["while :; do :; done", "sleep 60; echo after"])
def test_a_cell_past_its_time_is_interrupted_and_the_state_stays(
    cells: Cells, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells("n=6")
    skip = skip_time(monkeypatch)
    with pytest.raises(errors.ExecutionTimeout) as caught:
        cells(f"echo so far; {code}", timeout=30, on_stdout=lambda text: skip())
    assert caught.value.result is not None and caught.value.result.stdout == "so far\n"
    assert cells("echo $n").stdout == "6\n"


def test_variables_are_those_of_the_cells(cells: Cells) -> None:
    cells("name='a b'; numbers=(1 2)")
    assert cells.variables() == {"name": '"a b"', "numbers": '([0]="1" [1]="2")'}


def test_variables_of_megabytes(cells: Cells) -> None:
    """They are shown as short texts. Only a bash that has exited cannot be continued with them, and says so."""
    cells("x=$(head -c 5000000 /dev/zero | tr '\\0' a); y=1")
    found = cells.variables()
    assert (len(found["x"]), found["y"]) == (1000, '"1"')
    assert cells("echo ${#x}").stdout == "5000000\n"
    with pytest.raises(errors.SessionEnded) as caught:
        cells("echo before; exit 3")
    assert caught.value.result is not None and caught.value.result.stdout == "before\n"
    assert "too large to continue with" in caught.value.result.stderr


def test_a_shell_that_is_killed_ends_the_session(cells: Cells) -> None:
    with pytest.raises(errors.SessionEnded):
        cells("kill -9 $$")
    with pytest.raises(errors.SessionEnded):
        cells("echo")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine does not end a session."""
    monkeypatch.setattr("warmcell.sessions.exchange.CANCEL_SECONDS", PATIENCE)
    monkeypatch.setattr("warmcell.sessions.exchange.GRACE_SECONDS", PATIENCE)


@pytest.mark.usefixtures("patience")
def test_cells_that_are_cancelled_at_once_do_not_end_the_session(cells: Cells) -> None:
    """Whether bash has begun, is in the middle, has exited or is starting: the next cell finds the state."""
    cells("kept=42; twice() { echo $(($1 * 2)); }")
    run = Run()
    run.cancel()
    for code in ["sleep 60", "while :; do :; done", "exit 3", "echo x | cat", "echo $(echo x)"] * 6:
        with pytest.raises(RunCancelled):
            cells.talk.run(run, code, 60, Listeners(), 1000)
        result = cells("echo $kept; twice 4")
        assert (result.stdout, result.value) == ("42\n8\n", "0")


@pytest.mark.usefixtures("patience")
def test_an_interrupt_at_any_moment_of_a_cell_keeps_the_session(cells: Cells) -> None:
    cells("kept=42")
    for number in range(30):
        interrupter = threading.Timer(0.0003 * number, lambda: cells.talk.interrupts.request(is_awaited=False))
        interrupter.start()
        cells("exit 3" if number % 2 else "for i in 1 2 3; do echo $i | cat >/dev/null; done")
        interrupter.join()
        assert cells("echo $kept").stdout == "42\n"


def test_an_interrupt_runs_the_exit_trap_of_the_same_cell(cells: Cells) -> None:
    result = cells("n=5; trap 'echo bye' EXIT; kill -INT $$; sleep 60")
    assert (result.stdout, result.value) == ("bye\n", "130")
    assert cells("echo $n").stdout == "5\n"


@pytest.mark.parametrize("command", ["__warmcell_last", "builtin trap -p", "builtin printf"])
def test_an_interrupt_during_the_report_of_a_cell_keeps_the_session(cells: Cells, command: str) -> None:
    first = cells(f"""trap 'case $BASH_COMMAND in "{command}"*) trap - DEBUG; kill -INT $$;; esac' DEBUG
        trap 'echo bye' EXIT""")
    assert cells("echo next").stdout == "next\n"
    assert first.stdout + cells("exit").stdout == "bye\n"


@pytest.mark.parametrize(("trap", "printed"), [("EXIT", ""), ("INT", "caught\n"), ("INT, with exit", "caught\n")])
def test_a_late_interrupt_prints_nothing_into_the_next_cell(
    cells: Cells, trap: str, printed: str, tmp_path: Path
) -> None:
    """The worker, stopped while the cell ends, finds the interrupt and the report of the cell together."""
    action = "echo caught; exit 3" if "exit" in trap else "echo caught"
    pid = int(cells(f"n=5; trap '{action}' {trap.partition(',')[0]}; echo $$").stdout)
    may_end = tmp_path / "may_end"

    def stop_and_interrupt(text: str) -> None:
        if text != "first\n":
            return
        worker = cells.worker.process.pid
        os.kill(worker, signal.SIGSTOP)
        until(lambda: _is_stopped(worker))  # else it may still read the report alone
        may_end.touch()
        until(lambda: _waits_for_input(pid))
        cells.talk.interrupts.request(is_awaited=False)
        threading.Thread(target=continue_when_interrupted, args=(worker,)).start()

    def continue_when_interrupted(worker: int) -> None:
        """The message comes before the signal, and both when the callback has returned."""
        try:
            until(lambda: _has_pending(worker, signal.SIGINT))
        finally:
            os.kill(worker, signal.SIGCONT)

    first = cells(f"echo first; until [ -e {may_end} ]; do :; done", on_stdout=stop_and_interrupt)
    assert first.stdout == f"first\n{printed}"
    assert cells("echo $n next").stdout == "5 next\n"


def test_a_shell_that_ended_between_two_cells_runs_the_next_one(cells: Cells) -> None:
    pid = int(cells("kept=42; echo $$").stdout)
    os.kill(pid, signal.SIGTERM)
    result = cells("echo $kept; echo $$")
    assert result.stdout.startswith("42\n") and result.value == "0"
    assert result.stdout != f"42\n{pid}\n"


def test_the_shell_gets_the_signal_of_its_own_cell_only(cells: Cells) -> None:
    pid = int(cells("echo $$").stdout)
    for _ in range(5):
        cells.worker.interrupt()  # the signal alone, as if it arrived late
    assert int(cells("echo $$").stdout) == pid


def test_only_processes_that_would_have_died_of_a_signal_get_it_again() -> None:
    prints = "print(flush=True); signal.pause()"
    deaf = f"import signal; signal.signal(signal.SIGINT, lambda *_: print('again', flush=True)); {prints}"
    plain = f"import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); {prints}"
    with (
        subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, process_group=0) as first,
        subprocess.Popen([sys.executable, "-c", plain], stdout=subprocess.PIPE, process_group=first.pid) as second,
    ):
        assert first.stdout is not None and second.stdout is not None
        assert first.stdout.readline() == second.stdout.readline() == b"\n"
        trees.signal_unhandled(first.pid, signal.SIGINT)
        assert second.wait(PATIENCE) == -signal.SIGINT
        first.kill()
        assert first.stdout.read() == b""


def test_a_wake_up_that_was_read_already_does_not_fail_the_next_cell(cells: Cells) -> None:
    cells.talk.interrupts._is_woken = True  # an interrupt came while the last cell was reading the previous one
    assert cells("echo next").stdout == "next\n"
