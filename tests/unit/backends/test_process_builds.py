"""Builds: once for many runs, with limits of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from warmcell import (
    BuildFailed,
    ExecRequest,
    ExecutionTimeout,
    InvalidRequest,
    Limits,
    MemoryExceeded,
    ProcessBackend,
    ProcessConfig,
)

pytestmark = pytest.mark.needs("user namespaces")


@pytest.fixture
def fresh_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def backend(fresh_cache: None) -> Iterator[ProcessBackend]:
    with ProcessBackend() as made:
        yield made


def adder() -> str:
    """Another text each time, so that nothing was built before."""
    mark = os.urandom(8).hex()
    return f'#include <stdio.h>\nint main(void) {{ int a, b; scanf("%d %d", &a, &b); printf("%d", a + b); }} // {mark}'


@pytest.mark.needs("gcc")
def test_twenty_cases_cost_one_build(backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[bool] = []
    run = backend._launcher._run_with_retry
    monkeypatch.setattr(
        backend._launcher, "_run_with_retry", lambda launch: (builds.append(launch.phase == "build"), run(launch))[1]
    )

    async def cases() -> list[str]:
        async with await backend.build(ExecRequest("c", adder(), 30)) as program:
            results = await asyncio.gather(*(program.run(f"{n} 1") for n in range(20)))
        return [result.stdout for result in results]

    assert asyncio.run(cases()) == [str(n + 1) for n in range(20)]
    assert (builds.count(True), builds.count(False)) == (1, 20)


@pytest.mark.needs("gcc")
def test_what_one_program_holds_others_find(backend: ProcessBackend) -> None:
    request = ExecRequest("c", adder(), 30, stdin="1 2")
    with backend.build_blocking(request) as first, backend.build_blocking(request) as second:
        assert [backend.execute_blocking(request).stdout, first.run_blocking().stdout] == ["3", "3"]
        assert second.run_blocking().stdout == "3"


@pytest.mark.needs("gcc")
def test_a_large_program_is_mounted_and_a_small_one_sent(backend: ProcessBackend) -> None:
    large = "static const char filling[9 << 20] = {1}; const char *volatile kept = filling;\n#include <stdio.h>\nint main(int n, char **v) { puts(v[0]); }"
    with backend.build_blocking(ExecRequest("c", large, 30)) as program:
        assert program.run_blocking().stdout == "/out/main\n"
    small = "#include <stdio.h>\nint main(int n, char **v) { puts(v[0]); }"
    with backend.build_blocking(ExecRequest("c", small, 30)) as program:
        assert program.run_blocking().stdout == "/code/main\n"


@pytest.mark.needs("g++")
def test_a_compiler_needs_more_than_its_program_gets(backend: ProcessBackend) -> None:
    code = f"#include <iostream>\n#include <map>\n#include <regex>\nint main() {{ std::cout << 1; }} // {os.urandom(8).hex()}"
    request = ExecRequest("cpp", code, 60, memory_limit_mb=32, limits=Limits(processes=1))
    with backend.build_blocking(request) as program:
        assert program.run_blocking().stdout == "1"
    assert backend.execute_blocking(request).stdout == "1"


@pytest.mark.needs("gcc")
def test_a_build_has_limits_of_its_own(fresh_cache: None) -> None:
    code = f"int main(void) {{ return 0; }} // {os.urandom(8).hex()}"
    with ProcessBackend(ProcessConfig(build_timeout=0.5)) as backend, pytest.raises(ExecutionTimeout) as slow:
        backend.build_blocking(ExecRequest("perl", "BEGIN { sleep 30 }", 60))
    assert (slow.value.phase, slow.value.timeout, slow.value.fault) == ("build", 0.5, "guest")
    small, over = ProcessConfig(build_limits=Limits(memory_mb=1)), (MemoryExceeded, BuildFailed)
    with ProcessBackend(small) as backend, pytest.raises(over) as large:
        backend.build_blocking(ExecRequest("c", code, 60))
    assert large.value.fault == "guest"
    with pytest.raises(InvalidRequest):
        ProcessConfig(build_limits=1)  # type: ignore[arg-type]


def test_what_a_module_name_or_a_mistake_at_run_time_is_is_not_for_the_build_to_say(backend: ProcessBackend) -> None:
    with backend.build_blocking(ExecRequest("python", "import nowhere", 20)) as program:
        assert "ModuleNotFoundError" in program.run_blocking().stderr


@pytest.mark.needs("gcc")
def test_programs_that_were_not_closed_release_their_descriptors(fresh_cache: None) -> None:
    request = ExecRequest("c", adder(), 30)
    # Without a pool: cells that are made ahead have descriptors too, and come when they come.
    with ProcessBackend(ProcessConfig(pool_size=0, pool_min=0)) as backend:
        backend.build_blocking(request).run_blocking("1 2")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            backend.build_blocking(request)
        assert len(os.listdir("/proc/self/fd")) <= before + 2
