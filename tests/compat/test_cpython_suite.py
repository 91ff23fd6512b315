"""Ordinary programs do not notice the cage: CPython's own tests pass in it, but for those that the page explains."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.cpython_suite import (
    MODULES,
    PAGE,
    SuiteRun,
    failing_outside,
    has_suite,
    matching,
    read_known_failures,
    read_output,
    run_caged,
)
from tests.helpers import require

pytestmark = [
    pytest.mark.needs("linux", "user namespaces"),
    pytest.mark.xdist_group("cpython suite"),
    pytest.mark.timeout(1200, method="signal"),
]


@pytest.fixture(scope="module")
def caged() -> dict[str, SuiteRun]:
    require(has_suite(), "this Python has no `test` package (Debian: apt-get install libpython3.11-testsuite)")
    return run_caged()


@pytest.fixture(scope="module")
def documented() -> dict[str, str]:
    return read_known_failures(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", MODULES)
def test_only_what_the_page_lists_fails(
    module: str, caged: dict[str, SuiteRun], documented: dict[str, str], tmp_path: Path
) -> None:
    run = caged[module]
    assert run.ran >= MODULES[module], f"the suite did not get to its end:\n{run.output[-3000:]}"
    surprises = set(run.failed) - {test for pattern in documented for test in matching(run.failed, pattern)}
    if surprises:
        surprises -= failing_outside(surprises, tmp_path)
    assert not surprises, run.output[-6000:]


@pytest.mark.parametrize("module", MODULES)
def test_what_the_page_lists_still_fails(module: str, caged: dict[str, SuiteRun], documented: dict[str, str]) -> None:
    listed = [pattern for pattern in documented if pattern.startswith(f"test.{module}.")]
    mended = [pattern for pattern in listed if not matching(caged[module].failed, pattern)]
    assert not mended, f"these pass now: take them off {PAGE.name}"


def test_reading_what_the_suite_prints() -> None:
    text = (
        "ERROR: test_a (test.test_os.A.test_a) (user=1)\nERROR: test_a (test.test_os.A.test_a) (user=2)\n"
        "FAIL: test_b (test.test_os.A.test_b)\ntest_c (test.test_os.A.test_c) ... ok\nRan 3 tests in 0.1s\n"
    )
    run = read_output(text)
    assert (run.ran, run.failed) == (3, frozenset({"test.test_os.A.test_a", "test.test_os.A.test_b"}))


def test_every_documented_failure_has_a_reason(documented: dict[str, str]) -> None:
    reasons = set(documented.values())
    page = PAGE.read_text(encoding="utf-8")
    assert reasons
    assert [reason for reason in reasons if f"- **{reason}**: " not in page] == []
