"""What a shell session keeps, with its worker bare."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sessions.bare import Cells, shell_worker

from warmcell import errors

pytestmark = pytest.mark.needs("linux")


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


def test_output_errors_and_input(cells: Cells) -> None:
    result = cells("echo out; echo err >&2; cat; read line || echo end; printf 'é'")
    assert (result.stdout, result.stderr) == ("out\nend\né", "err\n")
    missing = cells("not-there-at-all")
    assert missing.value == "127" and "not-there-at-all: command not found" in missing.stderr
    broken = cells("echo 'unclosed")
    assert broken.error is not None and "unexpected EOF" in broken.stderr
    assert cells("echo still").stdout == "still\n"


@pytest.mark.parametrize("code", ["while :; do :; done", "sleep 60; echo after"])
def test_a_cell_past_its_time_is_interrupted_and_the_state_stays(cells: Cells, code: str) -> None:
    cells("n=6")
    with pytest.raises(errors.ExecutionTimeout) as caught:
        cells(f"echo so far; {code}", timeout=1.5)
    assert caught.value.result is not None and caught.value.result.stdout == "so far\n"
    assert cells("echo $n").stdout == "6\n"


def test_variables_are_those_of_the_cells(cells: Cells) -> None:
    cells("name='a b'; numbers=(1 2)")
    assert cells.variables() == {"name": '"a b"', "numbers": '([0]="1" [1]="2")'}


def test_a_shell_that_is_killed_ends_the_session(cells: Cells) -> None:
    with pytest.raises(errors.SessionEnded):
        cells("kill -9 $$")
    with pytest.raises(errors.SessionEnded):
        cells("echo")
