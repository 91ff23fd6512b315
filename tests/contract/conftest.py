"""One behaviour suite, every backend. A new one joins by one line in BACKENDS."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.local_ray import is_cluster_lane, start_ray
from tests.contract import processes
from tests.contract.dialects import PYTHON, SCRIPT, WAT, act
from tests.contract.programs import Dialect, Step
from tests.helpers import require
from tests.image_roots import shared_debian_like, shared_place

from warmcell import (
    BuildFailed,
    EnforcerUnavailable,
    ExecRequest,
    ExecResult,
    FakeBackend,
    ProcessBackend,
    ProcessConfig,
    RayBackend,
    SandboxPolicy,
    WasmBackend,
)
from warmcell.enforcers.kernel_calls import kernel_version
from warmcell.images import Image
from warmcell.languages.python import find_interpreter

Run = Callable[..., ExecResult]


@dataclass(frozen=True)
class Kind:
    """How a backend is created, and in which dialect its guests are written. `options` are the same for all of them:

    `limits`: the most that a request can get; `max_concurrency` and `queue_timeout`: how many at once, how long to wait.
    """

    make: Callable[..., Any]
    dialect: Dialect
    #: The host's processes that run guests now.
    guests: Callable[[Any], set[int]] = processes.of_nobody
    #: Options that turn warm cells off, so that processes and descriptors can be counted.
    frugal: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_imaginary(self) -> bool:
        """True if its guests are not processes of the host."""
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


def in_image(limits: Any = None, **config: Any) -> ProcessBackend:
    require(kernel_version() >= (6, 6), "images need Linux 6.6")
    policy = SandboxPolicy(allow_process_spawn=True, limits=limits)
    return ProcessBackend(ProcessConfig(**config), "native", policy, image=_image())


#: Names the directory of the image to the processes that `scenario.play` starts.
_IMAGES = "WARMCELL_TEST_IMAGES"


@pytest.fixture(scope="session", autouse=True)
def images(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ[_IMAGES] = str(shared_place(tmp_path_factory))


@cache
def _image() -> Image:
    return shared_debian_like(Path(os.environ[_IMAGES]))


def wasm(**options: Any) -> WasmBackend:
    require(importlib.util.find_spec("wasmtime"), "wasmtime is not installed")
    if "max_concurrency" in options:
        options["max_workers"] = options.pop("max_concurrency")
    return WasmBackend(**options)


def fake(**options: Any) -> FakeBackend:
    refused = BuildFailed(ExecResult(stderr="that is not a program\n", exit_code=1))
    return FakeBackend(act, languages=["python"], **options).when(refused, code="^nonsense$")


def on_ray(limits: Any = None, **config: Any) -> RayBackend:
    start_ray()
    return RayBackend(
        config=ProcessConfig(**config), policy=SandboxPolicy(allow_process_spawn=True, limits=limits), retries=0
    )


NO_POOL = {"pool_size": 0, "pool_min": 0}

BACKENDS = {
    "bare": Kind(process(None), PYTHON, processes.of_zygotes, NO_POOL),
    "landlock": Kind(process("landlock"), PYTHON, processes.of_zygotes, NO_POOL),
    "bubblewrap": Kind(process("bubblewrap"), PYTHON, processes.of_zygotes, NO_POOL),
    "native": Kind(process("native"), PYTHON, processes.of_zygotes, NO_POOL),
    "image": Kind(in_image, PYTHON, processes.of_zygotes, NO_POOL),
    "wasm": Kind(wasm, WAT, processes.of_workers),
    "fake": Kind(fake, SCRIPT),
}
if is_cluster_lane():  # the others have run by then
    BACKENDS = {"ray": Kind(on_ray, PYTHON, processes.of_nodes, NO_POOL)}


@pytest.fixture(scope="module", params=list(BACKENDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return BACKENDS[request.param]


@pytest.fixture(scope="module")
def backend(kind: Kind) -> Iterator[Any]:
    """One backend for all tests of a module, so that an effect of one test shows in the next."""
    made = kind.make()
    yield made
    asyncio.run(made.aclose())


@pytest.fixture
def fresh(kind: Kind) -> Iterator[Callable[..., Any]]:
    """Creates backends for one test, with options, and closes them after it."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(kind.make(**options))
        return made[-1]

    yield make
    for one in made:
        asyncio.run(one.aclose())


@pytest.fixture
def frugal(kind: Kind, fresh: Callable[..., Any]) -> Any:
    """A backend for one test, without warm cells."""
    return fresh(**kind.frugal)


@pytest.fixture
def run(kind: Kind, backend: Any) -> Run:
    """Runs steps on the module's backend, or on the one that is given with `on`."""

    def run(*steps: Step, on: Any = None, **options: Any) -> ExecResult:
        return asyncio.run((on or backend).execute(kind.request(*steps, **options)))

    return run


def runner(backend: ProcessBackend) -> Run:
    """Runs source text, where the contract has no steps."""

    def run(code: str, language: str = "python", timeout: float = 20, **options: Any) -> ExecResult:
        return backend.execute_blocking(ExecRequest(language, code, timeout, **options))  # type: ignore[arg-type]

    return run


@pytest.fixture(scope="module")
def native() -> Iterator[ProcessBackend]:
    with ProcessBackend(enforcer="native") as made:
        yield made


@pytest.fixture(scope="module")
def bare_python() -> str:
    """The interpreter that guests get, for runs outside any cage."""
    return find_interpreter(ProcessConfig()).path
