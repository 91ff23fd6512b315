"""A platform without POSIX modules, simulated by hiding them: every refusal is a `SandboxError`."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HIDE = """
import sys
for name in ("fcntl", "termios", "pwd", "grp"):
    sys.modules[name] = None
import warmcell
from warmcell.errors import BackendUnavailable
try:
    {use}
except BackendUnavailable as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    "use",
    [
        "warmcell.Sandbox()",
        "warmcell.Sandbox(backend='wasm')",
        "warmcell.AsyncSandbox()",
        "warmcell.WasmBackend()",
        "warmcell.ProcessBackend()",
        "warmcell.run('print(1)')",
        "warmcell.get_backend('wasm')",
        "from warmcell import Sandbox",
    ],
)
def test_without_posix_the_refusal_is_typed_and_has_a_hint(use: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _HIDE.format(use=use)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("refused: not supported on this platform") and "WSL 2" in ended.stdout


def test_names_that_need_no_posix_work() -> None:
    use = "print(warmcell.SandboxPolicyBuilder().allow_network().build().allow_network, warmcell.ExecRequest.__name__)"
    ended = subprocess.run([sys.executable, "-c", _HIDE.format(use=use)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "True ExecRequest\n"), ended.stderr


def test_another_missing_module_is_still_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import warmcell

    monkeypatch.setitem(warmcell._HOME_OF, "Missing", "warmcell.no_such_module")
    with pytest.raises(ImportError, match="no_such_module"):
        _ = warmcell.Missing  # type: ignore[attr-defined]
