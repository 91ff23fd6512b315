"""One behaviour suite, every class of the process backend: a new one joins by one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.helpers import require

from warmcell import ExecRequest, ExecResult, ProcessBackend
from warmcell.core.errors import EnforcerUnavailable

CLASSES = {"bare": None, "native": "native", "bubblewrap": "bubblewrap", "landlock": "landlock"}

Run = Callable[..., ExecResult]


@pytest.fixture(scope="module", params=list(CLASSES))
def backend(request: pytest.FixtureRequest) -> Iterator[ProcessBackend]:
    enforcer = CLASSES[request.param]
    try:
        made = ProcessBackend(enforcer=enforcer)
        made.capabilities()
    except EnforcerUnavailable as error:
        require(False, str(error))
    with made:
        yield made


@pytest.fixture(scope="module")
def native() -> Iterator[ProcessBackend]:
    with ProcessBackend(enforcer="native") as made:
        yield made


def runner(backend: ProcessBackend) -> Run:
    def run(code: str, language: str = "python", timeout: float = 20, **options: Any) -> ExecResult:
        return backend.execute_blocking(ExecRequest(language, code, timeout, **options))  # type: ignore[arg-type]

    return run


@pytest.fixture
def run(backend: ProcessBackend) -> Run:
    return runner(backend)


@pytest.fixture(scope="session")
def has_rust() -> bool:
    return shutil.which("rustc") is not None
