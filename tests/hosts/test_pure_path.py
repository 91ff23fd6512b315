"""Where memory may not be executed, Python goes through the lists of calls: the same tests hold for both ways."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.conditions import without_calls

ROOT = Path(__file__).parents[2]
#: mprotect with PROT_EXEC, refused as SELinux refuses it.
NO_EXECUTABLE_MEMORY = without_calls("mprotect:2&4=13")
SUITES = (
    "tests/contract/test_runs.py",
    "tests/contract/test_cancel_and_close.py",
    "tests/escape/test_sleeping_init.py",
)

_PROBE = "from warmcell.cage.linux import call_list; print(call_list.can_spawn())"


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*NO_EXECUTABLE_MEMORY, sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.needs("linux", "user namespaces")
def test_the_same_tests_pass_without_machine_code() -> None:
    """WebAssembly is compiled to memory that must be executed, and is left out."""
    assert _run("-c", _PROBE).stdout == "False\n"
    done = _run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not wasm", *SUITES)
    assert done.returncode == 0, done.stdout[-3000:]
