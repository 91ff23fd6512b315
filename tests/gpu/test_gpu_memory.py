"""The watcher over NVML, with a made-up library: what a guest has on a device is measured and limited.

The library reports the same for every process of the host, the guest's sleeping init included.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gpu.made_up import driver
from tests.helpers import require

from warmcell import ExecRequest, Limits, MemoryExceeded, ProcessBackend, ProcessConfig, Sandbox, SandboxPolicyBuilder
from warmcell.core.errors import ExecutionFailed
from warmcell.enforcers import gpus

pytestmark = [pytest.mark.needs("user namespaces"), pytest.mark.needs("gcc")]

WAIT = "import time\nprint('started', flush=True)\ntime.sleep({})\nprint('ended')"
POLICY = SandboxPolicyBuilder().allow_process_spawn().allow_gpu([3]).build()


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The file that says how many MB every process has on the device."""
    compiler = shutil.which("gcc")
    require(compiler, "no C compiler")
    library = tmp_path / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("made_up_nvml.c")
    subprocess.run([str(compiler), "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    monkeypatch.setattr(gpus, "find_driver", lambda: driver((3,), counts_memory=True, library_dirs=(str(tmp_path),)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "use").write_text("300")
    yield tmp_path / "use"


def set_use(use: Path, megabytes: int) -> None:
    """In one step: a library that reads an empty file fails."""
    draft = use.with_name("draft")
    draft.write_text(str(megabytes))
    draft.replace(use)


def run(code: str, megabytes: int | None, timeout: float = 60) -> object:
    with ProcessBackend(ProcessConfig(pool_size=0), policy=POLICY) as backend:
        return backend.execute_blocking(ExecRequest("python", code, timeout, limits=Limits(gpu_memory_mb=megabytes)))


@pytest.mark.claim("WC-GP-2")
def test_a_guest_over_its_limit_is_ended(use: Path) -> None:
    with pytest.raises(MemoryExceeded, match="GPU memory limit of 200 MB exceeded") as raised:
        run(WAIT.format(600), 200, timeout=300)
    error = raised.value
    assert error.is_gpu
    assert error.code == "sandbox.memory_exceeded"
    assert error.result is not None
    assert error.result.usage.gpu_peak_memory_bytes == 2 * 300 << 20
    assert error.result.enforced.gpu_memory == "supervisor (NVML)"
    (denial,) = error.result.denials
    assert (denial.kind, denial.rule) == ("gpu memory", "limits.gpuMemoryMb")


def test_a_guest_within_its_limit_goes_on(use: Path) -> None:
    result = run(WAIT.format(2), 700)  # the watcher looks in this time, be it late
    assert result.stdout == "started\nended\n"  # type: ignore[attr-defined]
    assert result.usage.gpu_peak_memory_bytes == 2 * 300 << 20  # type: ignore[attr-defined]
    assert result.usage.gpu_time > 0  # type: ignore[attr-defined]


def test_processes_of_the_guest_count_together_and_others_do_not(use: Path) -> None:
    code = "import os, time\nif os.fork() == 0: time.sleep(3); os._exit(0)\nos.wait()"
    result = run(code, 4000)
    assert result.usage.gpu_peak_memory_bytes == 3 * 300 << 20  # type: ignore[attr-defined]


@pytest.mark.claim("WC-GP-2")
def test_a_library_that_fails_ends_a_limited_run(use: Path) -> None:
    code = "import time\nprint('started', flush=True)\ntime.sleep(600)"
    with ProcessBackend(ProcessConfig(pool_size=0), policy=POLICY) as backend:
        stream = backend.stream_blocking(ExecRequest("python", code, 300, limits=Limits(gpu_memory_mb=4000)))
        next(stream)
        use.unlink()
        with pytest.raises(ExecutionFailed, match="cannot be enforced"):
            list(stream)


def test_a_live_sandbox_is_limited_too(use: Path) -> None:
    use.write_text("0")
    with Sandbox(gpus=[3], limits=Limits(gpu_memory_mb=100), live=True) as box, pytest.raises(MemoryExceeded):
        box.run(WAIT.format(600), timeout=300, on_stdout=lambda text: set_use(use, 300))
