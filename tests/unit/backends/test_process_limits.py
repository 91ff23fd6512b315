"""Limits of the process backend: what a run may use, and what is kept for the next ones."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator

import pytest
from tests.helpers import until

from warmcell import ExecRequest, Limits, ProcessBackend, ProcessConfig, SandboxPolicyBuilder
from warmcell.backends.process import launcher, policy_resolver
from warmcell.backends.process.cell_template import _MOST_TEMPLATES, CellTemplate
from warmcell.core.errors import ExecutionTimeout, InvalidRequest
from warmcell.enforcers import probe

BUSY = {
    "python": "print('x', flush=True)\nwhile True: pass",
    "command": "echo x; while :; do :; done",
}
IN_CHILDREN = "echo x; (while :; do :; done) & (while :; do :; done) & wait"


@pytest.fixture(params=["with what there is", "without a cgroup"])
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "without a cgroup":
        monkeypatch.setattr(launcher, "group_parent", lambda: None)
        monkeypatch.setattr(policy_resolver, "host_capabilities", probe.measure)
    yield


@pytest.mark.parametrize("enforcer", ["native", "landlock", "bubblewrap", None])
def test_too_much_cpu_time_is_a_timeout_in_every_class(watched: None, enforcer: str | None) -> None:
    programs = [("python", BUSY["python"]), ("command", BUSY["command"]), ("command", IN_CHILDREN)]
    with ProcessBackend(enforcer=enforcer) as backend:
        for language, code in programs:
            with pytest.raises(ExecutionTimeout, match=r"after 0\.3 s of cpu time") as ended:
                backend.execute_blocking(ExecRequest(language, code, 60, limits=Limits(cpu_seconds=0.3)))  # type: ignore[arg-type]
            result = ended.value.result
            assert ended.value.clock == "cpu" and ended.value.fault == "guest" and result is not None
            assert result.stdout == "x\n" and result.usage.cpu_time >= 0.3
            assert [denial.kind for denial in result.denials] == ["cpu"]


@pytest.mark.parametrize("enforcer", ["native", None])
def test_waiting_costs_no_cpu_time(watched: None, enforcer: str | None) -> None:
    with ProcessBackend(enforcer=enforcer) as backend:
        request = ExecRequest("python", "import time; time.sleep(1)", 60, limits=Limits(cpu_seconds=0.9))
        assert backend.execute_blocking(request).ok


class TestWhatIsKept:
    def test_many_different_limits_do_not_pile_up_cells(self) -> None:
        """Twelve of them once kept fifteen cells, for as long as the backend lived."""
        with ProcessBackend(ProcessConfig(pool_size=4)) as backend:
            for memory in range(100, 112):
                for _ in range(2):
                    request = ExecRequest("python", "pass", 20, limits=Limits(memory_mb=memory))
                    assert backend.execute_blocking(request).ok
            until(lambda: backend.ready_cells)
            most, watched_until = 0, time.monotonic() + 3
            while time.monotonic() < watched_until:
                most = max(most, backend.ready_cells)
                time.sleep(0.02)
            assert most <= 8
            last = ExecRequest("python", "pass", 20, limits=Limits(memory_mb=111))
            demands = backend._launcher.pool.demands
            plan = backend._launcher._find_template(_launch(backend, last))._prepared.plan
            until(lambda: plan in {kind.plan for kind, demand in demands.copy().items() if demand.ready})
            assert len(demands) <= 8

    def test_worlds_are_forgotten_when_others_are_used(self) -> None:
        with ProcessBackend(ProcessConfig(pool_size=0)) as backend:
            requests = [
                ExecRequest("python", "pass", 20, limits=Limits(memory_mb=memory))
                for memory in range(100, 102 + _MOST_TEMPLATES)
            ]
            templates = [backend._launcher._find_template(_launch(backend, request)) for request in requests]
            assert len(backend._launcher._templates._templates) == _MOST_TEMPLATES
            assert backend._launcher._find_template(_launch(backend, requests[-1])) is templates[-1]
            assert backend._launcher._find_template(_launch(backend, requests[0])) is not templates[0]

    def test_nothing_of_a_run_is_kept(self) -> None:
        """Its code, its input and its cell would take memory for as long as the program lives."""
        template = object.__new__(CellTemplate)
        started = weakref.ref(launcher._start_in(template, lambda _: threading.Event(), lambda: template)[1])
        assert started() is None


def _launch(backend: ProcessBackend, request: ExecRequest) -> launcher.Launch:
    from warmcell.backends.process.launch import Launch
    from warmcell.languages.registry import language_runtime
    from warmcell.lifetime.run import Run
    from warmcell.policy.resolve import effective_limits

    program = language_runtime(request.language).prepare(str(request.code), backend._config)
    limits = effective_limits(backend.policy, request.limits, request.memory_limit_mb)
    return Launch(program, request.env, b"", request.timeout, limits, Run())


def test_open_files_that_are_too_few_to_start_are_the_callers_mistake() -> None:
    counts = "import os\nn = 0\ntry:\n    while True: os.open('/dev/null', 0); n += 1\nexcept OSError: print(n)"
    with ProcessBackend() as backend:
        few = ExecRequest("python", counts, 30, limits=Limits(open_files=8))
        assert backend.execute_blocking(few).stdout == "5\n"
        for language, code in (("python", "1"), ("command", "true"), ("javascript", "1")):
            with pytest.raises(InvalidRequest, match="is too low") as refused:
                backend.execute_blocking(ExecRequest(language, code, 30, limits=Limits(open_files=2)))
            assert refused.value.field == "limits.open_files"


@pytest.mark.parametrize(("language", "code"), [("python", "1"), ("command", "true ")])
def test_a_program_that_does_not_fit_into_its_disk_is_not_the_hosts_fault(language: str, code: str) -> None:
    request = ExecRequest(language, code + "#" * 2_000_000, 30, limits=Limits(disk_mb=1))
    with ProcessBackend() as backend, pytest.raises(InvalidRequest, match="does not fit") as refused:
        backend.execute_blocking(request)
    assert (refused.value.fault, refused.value.field) == ("caller", "code")


def test_repr_names_the_enforcer_and_the_grants() -> None:
    policy = SandboxPolicyBuilder().allow_domain("example.org").build()
    assert repr(ProcessBackend()) == "<ProcessBackend enforcer=auto network=none processes=allowed>"
    assert repr(ProcessBackend(policy=policy)) == "<ProcessBackend enforcer=auto network=example.org processes=denied>"
    assert repr(ProcessBackend(enforcer=None)).startswith("<ProcessBackend enforcer=None ")
