"""One behaviour suite, every backend. A new one joins by one line in BACKENDS."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.contract import processes
from tests.contract.dialects import PYTHON, SCRIPT, WAT, act
from tests.contract.programs import Dialect, Step
from tests.helpers import require

from warmcell import (
    BuildFailed,
    EnforcerUnavailable,
    ExecRequest,
    ExecResult,
    FakeBackend,
    ProcessBackend,
    ProcessConfig,
    SandboxPolicy,
    WasmBackend,
)

Run = Callable[..., ExecResult]


@dataclass(frozen=True)
class Kind:
    """How a backend is made, and in which words its guests are written. `options` are the same for all of them:

    `limits`: the most that a request can get; `max_concurrency` and `queue_timeout`: how many at once, how long to wait.
    """

    make: Callable[..., Any]
    dialect: Dialect
    #: The processes that run guests now, as the host sees them.
    guests: Callable[[Any], set[int]] = processes.of_nobody
    #: Options with which nothing is made ahead, so that processes and descriptors can be counted.
    frugal: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_imaginary(self) -> bool:
        """Whether no guest of it is a process that anybody could see."""
        return self.guests is processes.of_nobody

    def request(self, *steps: Step, timeout: float = 20, **options: Any) -> ExecRequest:
        return ExecRequest(self.dialect.language, self.dialect.write(steps), timeout, **options)  # type: ignore[arg-type]


def process(enforcer: str | None) -> Callable[..., ProcessBackend]:
    def make(limits: Any = None, **config: Any) -> ProcessBackend:
        backend = ProcessBackend(
            ProcessConfig(**config), enforcer, SandboxPolicy(allow_process_spawn=True, limits=limits)
        )
        try:
            backend.capabilities()
        except EnforcerUnavailable as error:
            require(False, str(error))
        return backend

    return make


def wasm(**options: Any) -> WasmBackend:
    require(importlib.util.find_spec("wasmtime"), "wasmtime is not installed")
    if "max_concurrency" in options:
        options["max_workers"] = options.pop("max_concurrency")
    return WasmBackend(**options)


def fake(**options: Any) -> FakeBackend:
    refused = BuildFailed(ExecResult(stderr="that is no program\n", exit_code=1))
    return FakeBackend(act, languages=["python"], **options).when(refused, code="^nonsense$")


NO_POOL = {"pool_size": 0, "pool_min": 0}

BACKENDS = {
    "bare": Kind(process(None), PYTHON, processes.of_zygotes, NO_POOL),
    "landlock": Kind(process("landlock"), PYTHON, processes.of_zygotes, NO_POOL),
    "bubblewrap": Kind(process("bubblewrap"), PYTHON, processes.of_zygotes, NO_POOL),
    "native": Kind(process("native"), PYTHON, processes.of_zygotes, NO_POOL),
    "wasm": Kind(wasm, WAT, processes.of_workers),
    "fake": Kind(fake, SCRIPT),
}


@pytest.fixture(scope="module", params=list(BACKENDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return BACKENDS[request.param]


@pytest.fixture(scope="module")
def backend(kind: Kind) -> Iterator[Any]:
    """One for all tests of a module: what a test does to it shows in the next."""
    made = kind.make()
    yield made
    asyncio.run(made.aclose())


@pytest.fixture
def fresh(kind: Kind) -> Iterator[Callable[..., Any]]:
    """Makes backends of the test's own, with options; they are closed if the test has not done so."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(kind.make(**options))
        return made[-1]

    yield make
    for one in made:
        asyncio.run(one.aclose())


@pytest.fixture
def frugal(kind: Kind, fresh: Callable[..., Any]) -> Any:
    """A backend of the test's own that makes nothing ahead."""
    return fresh(**kind.frugal)


@pytest.fixture
def run(kind: Kind, backend: Any) -> Run:
    """Runs steps on the module's backend, or on the one that is given with `on`."""

    def run(*steps: Step, on: Any = None, **options: Any) -> ExecResult:
        return asyncio.run((on or backend).execute(kind.request(*steps, **options)))

    return run


def runner(backend: ProcessBackend) -> Run:
    """Runs source text, for what the contract has no steps for."""

    def run(code: str, language: str = "python", timeout: float = 20, **options: Any) -> ExecResult:
        return backend.execute_blocking(ExecRequest(language, code, timeout, **options))  # type: ignore[arg-type]

    return run


@pytest.fixture(scope="module")
def native() -> Iterator[ProcessBackend]:
    with ProcessBackend(enforcer="native") as made:
        yield made
