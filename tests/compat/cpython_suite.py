"""Runs modules of CPython's own test suite, in the cage and outside, and reads which of their tests failed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from warmcell import ExecRequest, ExecResult, Language, Limits, ProcessBackend, ProcessConfig
from warmcell.languages.python import find_interpreter

PAGE = Path(__file__).resolve().parents[2] / "docs/compatibility.md"
#: The modules that the page promises to be complete about, and fewer tests than each of them has had for years.
MODULES = {"test_os": 250, "test_subprocess": 250, "test_threading": 150, "test_socket": 500}

_LIMITS = Limits(memory_mb=2048, processes=512, disk_mb=1024, open_files=4096, output_bytes=8 << 20)
#: For all modules side by side, where the tests of other workers run beside them.
_TIMEOUT = 600.0
_RAN = re.compile(r"^Ran (\d+) tests? in ", re.M)
_FAILED = re.compile(r"^(?:FAIL|ERROR): \w+ \(([\w.]+)\)", re.M)
_DOCUMENTED = re.compile(r"^```text\n# tests that fail\n(.*?)^```$", re.M | re.S)

# The warm worker replaces itself, so that what is tested is an interpreter that started as programs do. One stream
# keeps the order; bytecode could not be written anyway.
_START = """
import os, sys
os.dup2(1, 2)
os.execv(sys.executable, [sys.executable, "-B", "-m", "test", "-v", {module!r}])
"""


@dataclass(frozen=True)
class SuiteRun:
    """What one module's run came to."""

    ran: int
    failed: frozenset[str]
    output: str


def read_output(text: str) -> SuiteRun:
    """Which tests failed, by their full names; subtests count as the test that they belong to. Pure."""
    return SuiteRun(sum(map(int, _RAN.findall(text))), frozenset(_FAILED.findall(text)), text)


def read_known_failures(page: str) -> dict[str, str]:
    """Pattern of test names -> reason, from the block of the page that is there for machines too. Pure."""
    block = _DOCUMENTED.search(page)
    assert block, f"{PAGE.name} has lost its block of tests that fail"
    lines = (line.split(maxsplit=1) for line in block[1].splitlines() if line.strip())
    return {pattern: reason for pattern, reason in lines}


def matching(tests: frozenset[str], pattern: str) -> set[str]:
    return {test for test in tests if fnmatchcase(test, pattern)}


def interpreter() -> str:
    return find_interpreter(ProcessConfig()).path


def has_suite() -> bool:
    command = [interpreter(), "-I", "-c", "import test.test_os, test.test_socket"]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def run_caged() -> dict[str, SuiteRun]:
    """All modules at the same time, each in a cage of its own: most of their time is spent waiting."""

    async def run(backend: ProcessBackend, module: str) -> ExecResult:
        request = ExecRequest(Language.PYTHON, _START.format(module=module), _TIMEOUT, limits=_LIMITS)
        return await backend.execute(request)

    async def run_all() -> list[ExecResult]:
        backend = ProcessBackend(config=ProcessConfig(pool_size=0), enforcer="native")
        try:
            return await asyncio.gather(*(run(backend, module) for module in MODULES))
        finally:
            await backend.aclose()

    return {module: read_output(result.stdout) for module, result in zip(MODULES, asyncio.run(run_all()), strict=True)}


def failing_outside(tests: set[str], folder: Path) -> frozenset[str]:
    """Which of these fail on this host without any cage: the host's site-packages or load are to blame for those."""
    modules = sorted({test.split(".")[1] for test in tests})
    command = [interpreter(), "-B", "-m", "test", "-v", *modules]
    for test in sorted(tests):
        command += ["-m", test]
    environment = {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300, check=False
    )
    return read_output(done.stdout + done.stderr).failed
