"""Settings of the host program that belong to the whole process: every door works whatever they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import require

pytestmark = pytest.mark.needs("linux", "user namespaces", "bwrap")

_DOORS = """
import json
from warmcell import ExecRequest, ProcessBackend, ProcessConfig, Sandbox, SandboxError, WasmBackend, run

MODULE = '(module (func (export "_start")))'

def execute(backend, *request):
    with backend:
        return backend.execute_blocking(ExecRequest(*request, 60)).stdout

def workspace(**options):
    with Sandbox(**options) as sandbox:
        sandbox.write_file("a/file", "4")
        return sandbox.sh("cat a/file && printf 2").stdout + sandbox.read_file("a/file").decode()

def live():
    with Sandbox(live=True) as sandbox:
        process = sandbox.spawn("read line; echo $line", stdin=True)
        process.write(b"4\\n")
        process.close_stdin()
        answer = process.wait().stdout.strip()
        with sandbox.session() as session:
            return answer + session.run("print(2)").stdout.strip()

doors = {
    "python": lambda: execute(ProcessBackend(), "python", "print(42)"),
    "preload": lambda: execute(ProcessBackend(ProcessConfig(preload=["json"])), "python", "print(42)"),
    "program": lambda: run("echo 42", language="command").stdout,
    "landlock": lambda: execute(ProcessBackend(enforcer="landlock"), "python", "print(42)"),
    "bubblewrap": lambda: execute(ProcessBackend(enforcer="bubblewrap"), "python", "print(42)"),
    "wasm": lambda: execute(WasmBackend(), "wasm", MODULE),
    "wasm sandbox": lambda: workspace(backend="wasm"),
    "sandbox": workspace,
    "live": live,
}
answers = {}
for name, door in doors.items():
    try:
        answers[name] = door()
    except SandboxError as error:
        answers[name] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""
_GOOD = {
    **dict.fromkeys(("python", "preload", "program", "landlock", "bubblewrap"), "42\n"),
    "wasm": "",
    "wasm sandbox": "424",
    "sandbox": "424",
    "live": "42",
}


def _answers(setting: str, **environment: str) -> dict[str, str]:
    command = [sys.executable, "-c", f"{setting}\n{_DOORS}"]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


def test_a_default_timeout_of_sockets_changes_nothing() -> None:
    assert _answers("import socket; socket.setdefaulttimeout(10)") == _GOOD


@pytest.mark.parametrize("umask", [0o077, 0o177, 0o777], ids=oct)
def test_a_umask_changes_nothing(umask: int, tmp_path: Path) -> None:
    """Not even one that takes a directory's permissions from its owner; and nothing is left behind."""
    assert _answers(f"import os; os.umask({umask:#o})", TMPDIR=str(tmp_path)) == _GOOD
    assert os.listdir(tmp_path) == []


def _in_a_child(action: str) -> None:
    command = [sys.executable, "-c", f"import os; os.umask(0o777)\nfrom warmcell.lifetime import own_modes\n{action}"]
    subprocess.run(command, check=True, timeout=60)


def test_new_directories_and_files_are_their_owners(tmp_path: Path) -> None:
    _in_a_child(f"own_modes.make_directories({str(tmp_path / 'a' / 'b')!r})")
    _in_a_child(f"own_modes.grant_owner(os.open({str(tmp_path / 'a' / 'b' / 'file')!r}, os.O_CREAT | os.O_WRONLY))")
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/file")]
    assert modes == [0o700, 0o700, 0o600]


def test_sockets_between_processes_come_from_one_place() -> None:
    """The others are an event loop's, which makes them non-blocking itself, the guest's, or for the caller."""
    package = Path(__file__).parents[2] / "src" / "warmcell"
    made = re.compile(r"\bsocket\.socketpair\(|\bsocket\.socket\(fileno=")
    sources = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    users = {name for name, text in sources.items() if made.search(text) and not name.startswith("guest/")}
    assert users == {
        "cage/linux/descriptors.py",
        "cage/linux/notify.py",
        "backends/process/live.py",
        "backends/supervisor_process.py",
        "backends/supervisor_service.py",
        "interfaces/serve/front/worker.py",
        "interfaces/serve/front/workers.py",
        "interfaces/serve/listener.py",
    }


def _said(code: str, *prefix: str) -> str:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*prefix, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_live_cage_that_cannot_start_for_want_of_file_size_says_so() -> None:
    code = """
import resource
from warmcell import Sandbox, SandboxError
with Sandbox() as sandbox:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    try:
        sandbox.spawn("true").wait()
    except SandboxError as error:
        print(type(error).__name__, error.fault, error)
"""
    assert re.match("ExecutionFailed host .*RLIMIT_FSIZE is 8192", _said(code))


def test_a_personality_of_32_bits_changes_nothing() -> None:
    machine = os.uname().machine
    other = {"x86_64": "i686", "aarch64": "armv8l"}[machine]
    said = _said("from warmcell import run; print(run('print(42)').enforced.enforcer)", "setarch", other)
    assert said == "native"


def test_memory_that_may_not_be_executed_is_not_blamed_on_the_module() -> None:
    code = """
import ctypes
from warmcell import ExecRequest, SandboxError, WasmBackend
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, Linux 6.3
    print("unknown")
else:
    try:
        WasmBackend().execute_blocking(ExecRequest("wasm", '(module (func (export "_start")))', 60))
    except SandboxError as error:
        print(error.fault, error)
"""
    said = _said(code)
    require(said != "unknown", "the kernel has no PR_SET_MDWE")
    assert re.match("host .*may not make memory executable.*MemoryDenyWriteExecute", said)
