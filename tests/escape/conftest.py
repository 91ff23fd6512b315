"""One fixture, five invariants: in time, nothing left, memory flat, host canary untouched, next benign run works."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.escape.harness import ON_DEMAND, Belongings, Cage, Canary, check_nothing_left, forget_peak
from tests.escape.weakened import Weakened
from tests.helpers import require

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import EnforcerUnavailable
from warmcell.core.types import ExecRequest, Language


@pytest.fixture(scope="session", autouse=True)
def private_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever Warmcell makes in the temporary directory is then ours, and can be counted."""
    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path_factory.mktemp("temporary"))
    yield
    tempfile.tempdir = before


@pytest.fixture(scope="session")
def default_backend(private_temporary_directory: None) -> Iterator[ProcessBackend]:
    """The class that callers get without asking."""
    with ProcessBackend(ON_DEMAND) as backend:
        try:
            isolation = backend.capabilities().isolation_class
        except EnforcerUnavailable as reason:
            require(False, f"no cage works here: {reason}")
        assert isolation == "process+sandbox"
        _benign_run(backend)
        yield backend


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    # The way there is open to all, so that only the cage stands between the guest and it.
    for directory in (tmp_path, *list(tmp_path.parents)[:3]):
        if directory.name.startswith(("pytest-", "test_")) and directory.stat().st_uid == os.geteuid():
            directory.chmod(0o755)
    return Canary(tmp_path / "canary")


@pytest.fixture
def cage(default_backend: ProcessBackend, canary: Canary) -> Iterator[Cage]:
    """Runs payloads; afterwards the five invariants must hold."""
    gc.collect()
    before = Belongings.now()
    forget_peak()
    with ExitStack() as cleanup:
        yield Cage(default_backend, cleanup, canary)
    gc.collect()
    canary.check()
    check_nothing_left(before)
    _benign_run(default_backend)


@pytest.fixture
def weakened(cage: Cage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Weakened:
    return Weakened(cage, monkeypatch, tmp_path)


def _benign_run(backend: ProcessBackend) -> None:
    assert backend.execute_blocking(ExecRequest(Language.PYTHON, "print(6 * 7)", 10)).stdout == "42\n"
