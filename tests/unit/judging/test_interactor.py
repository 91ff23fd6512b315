"""Two programs over pipes, and whose fault it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from warmcell import Case, ExecRequest, ProcessBackend, judge
from warmcell.judging.verdicts import CheckerFailed

pytestmark = pytest.mark.needs("user namespaces")

#: Has the program guess the number in `input` within ten questions.
INTERACTOR = """
import sys
number = int(open("input").read())
for question in range(10):
    line = sys.stdin.readline()
    if not line:
        sys.exit(43)
    if line.strip() == "crash the interactor":
        raise RuntimeError("its own fault")
    guess = int(line)
    print("=" if guess == number else "<" if number < guess else ">", flush=True)
    if guess == number:
        sys.exit(42)
sys.exit(43)
"""
GUESSER = """
low, high = 1, 1000
while True:
    middle = (low + high) // 2
    print(middle, flush=True)
    answer = input()
    if answer == "=":
        break
    if answer == "<":
        high = middle - 1
    else:
        low = middle + 1
"""


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend() as made:
        yield made


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (GUESSER, "accepted"),
        ("for n in range(20): print(0, flush=True); input()", "wrong_answer"),
        ("print(0); raise SystemExit(3)", "runtime_error"),
        ("while True: pass", "time_limit"),
        ("input()", "time_limit"),  # both wait
        ("keep = bytearray(b'x') * (400 << 20)", "memory_limit"),
        ("print('crash the interactor', flush=True); input()", "checker_error"),
        ("import sys\nwhile True: sys.stdout.write('0\\n' * 1000)", "output_limit"),
    ],
)
def test_whose_fault_it_was(backend: ProcessBackend, code: str, status: str) -> None:
    request = ExecRequest("python", code, timeout=1, memory_limit_mb=128)
    interactor = ExecRequest("python", INTERACTOR, timeout=5)
    (verdict,) = judge(request, [Case("700", "")], backend=backend, interactor=interactor)
    assert verdict.status == status, verdict


@pytest.mark.needs("gcc")
def test_a_compiled_program_talks_to_an_interactor(backend: ProcessBackend) -> None:
    code = """
#include <stdio.h>
int main() {
    int low = 1, high = 1000; char answer[9];
    for (;;) {
        int middle = (low + high) / 2;
        printf("%d\\n", middle); fflush(stdout);
        if (scanf("%8s", answer) != 1 || answer[0] == '=') return 0;
        if (answer[0] == '<') high = middle - 1; else low = middle + 1;
    }
}
"""
    cases = [Case(str(number), "") for number in (1, 500, 1000)]
    interactor = ExecRequest("python", INTERACTOR, timeout=5)
    verdicts = judge(ExecRequest("c", code, timeout=2), cases, backend=backend, interactor=interactor)
    assert [verdict.status for verdict in verdicts] == ["accepted"] * 3


def test_an_interactor_that_does_not_build_is_the_callers_fault(backend: ProcessBackend) -> None:
    with pytest.raises(CheckerFailed, match="does not build"):
        judge(ExecRequest("python", "pass", 1), [Case()], backend=backend, interactor=ExecRequest("python", "(", 1))
