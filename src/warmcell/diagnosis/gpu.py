"""Checks which features of GPUs work on this host, by using one in a cage."""

from __future__ import annotations

import time
from collections.abc import Callable

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import MemoryExceeded, SandboxError
from warmcell.core.types import ExecRequest, ExecResult, Language, Limits
from warmcell.diagnosis.gpu_programs import PRODUCT, hold_memory
from warmcell.diagnosis.rows import Row
from warmcell.enforcers import gpus
from warmcell.languages.config import ProcessConfig
from warmcell.policy.gpu import NVIDIA
from warmcell.policy.model import SandboxPolicy

_LIST = "import os; print(*sorted(n for n in os.listdir('/dev') if n.startswith(('nvidia', 'kfd', 'dri'))))"
#: The driver's own libraries and context take hundreds of megabytes of ordinary memory.
_LIMITS = Limits(memory_mb=4096)


def examine_gpus() -> list[Row]:
    """Nothing is tried on a host without a GPU."""
    driver = gpus.find_driver()
    if driver is None:
        return [Row("gpu (optional)", "missing", None, "this host has no GPU")]
    rows = [_row("gpu devices", _devices)]
    if driver.vendor is not NVIDIA:
        proof = f"the nodes of {driver.vendor.name} devices are shown; no program was tried on them"
        return [*rows, Row("gpu product", "weaker", driver.vendor.name, proof)]
    return [*rows, _row("gpu product", _product), _row("gpu memory limit", _memory_limit)]


def _row(name: str, attempt: Callable[[], tuple[str, str]]) -> Row:
    try:
        mechanism, proof = attempt()
    except SandboxError as error:
        return Row(name, "missing", None, error.message, error.hint)
    except _Broken as broken:
        return Row(name, "missing", None, str(broken), "see docs/gpus.md")
    return Row(name, "works", mechanism, proof)


class _Broken(Exception):
    """A guest did not find what it should have."""


def _run(code: str, gpus: str | None = "all", limits: Limits = _LIMITS) -> ExecResult:
    policy = SandboxPolicy(allow_process_spawn=True, gpus=gpus)
    with ProcessBackend(ProcessConfig(pool_size=0), enforcer="native", policy=policy) as backend:
        return backend.execute_blocking(ExecRequest(Language.PYTHON, code, 30, limits=limits))


def _devices() -> tuple[str, str]:
    shown, hidden = _run(_LIST), _run(_LIST, gpus=None)
    if not shown.stdout.strip() or hidden.stdout.strip():
        raise _Broken(f"with GPUs a guest saw {shown.stdout.strip()!r}, without {hidden.stdout.strip()!r}")
    return "mount namespace", f"a guest with GPUs saw {shown.stdout.strip()}, one without saw no device"


def _product() -> tuple[str, str]:
    began = time.monotonic()
    result = _run(PRODUCT)
    took = time.monotonic() - began
    if not result.stdout.endswith("right\n"):
        raise _Broken(f"a guest could not use the device: {(result.stderr or result.stdout).strip()[-300:]}")
    return "libcuda", f"a guest computed a product on the device, in {took:.1f} s"


def _memory_limit() -> tuple[str, str]:
    """The driver's context alone takes more than 64 MB."""
    try:
        _run(hold_memory(256, 20), limits=Limits(memory_mb=4096, gpu_memory_mb=64))
    except MemoryExceeded as error:
        if error.is_gpu:
            return "supervisor (NVML)", "a guest that took 256 MB of the device was stopped at 64 MB"
        raise
    raise _Broken("a guest of 64 MB took 256 MB of the device")
