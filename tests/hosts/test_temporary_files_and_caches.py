"""Hosts that are not as one would wish: other temporary directories, little address space, caches that cannot be kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import require
from tests.wasm import guests

pytestmark = pytest.mark.needs("linux")
HELLO = guests.prints("hello\n")
#: What a caller sees, as JSON: the result or the error.
PROGRAM = f"""
import json, sys, logging
from warmcell import ExecRequest, Sandbox, SandboxError, WasmBackend
try:
    if sys.argv[1] == "backend":
        with WasmBackend() as backend:
            result = backend.execute_blocking(ExecRequest("wasm", {HELLO!r}, 60))
    else:
        with Sandbox(backend="wasm") as sandbox:
            sandbox.write_file("given.txt", "in the work directory")
            result = sandbox.sh("cat given.txt; echo kept > /tmp/x; cat /tmp/x")
    said = [result.exit_code, result.stdout, result.stderr]
except SandboxError as error:
    said = [type(error).__name__, error.fault, str(error)]
print(json.dumps(said))
"""


def outcome(*arguments: str, python: str = sys.executable, **environment: str) -> list[object]:
    command = [python, "-c", PROGRAM, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, check=True
    )
    outcome.stderr = done.stderr  # type: ignore[attr-defined]
    return list(json.loads(done.stdout))


@pytest.fixture
def elsewhere() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield directory


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_temporary_files_may_be_in_var_tmp(elsewhere: str, below: str) -> None:
    """In the cage /var/tmp is a link to /tmp: directories of the host must not be put there."""
    directory = os.path.join(elsewhere, below)
    os.makedirs(directory, exist_ok=True)
    assert outcome("sandbox", TMPDIR=directory) == [0, "in the work directorykept\n", ""]


def test_the_work_directory_may_be_anywhere(elsewhere: str) -> None:
    from warmcell import Sandbox

    for name in ("tmp", "code", "work", "mnt/0"):
        directory = Path(elsewhere) / name
        directory.mkdir(parents=True)
        (directory / "file").write_text(name)
        with Sandbox(directory, backend="wasm") as sandbox:
            assert sandbox.sh("cat file").stdout == name


_LOOK = """import os
print(open(os.path.join({directory!r}, 'note')).read(), os.path.islink('/var/tmp'))
for place in ('/tmp/made', '/var/tmp/made'):
    open(place, 'w').close()
    os.remove(place)
"""


@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize("enforcer", ["native", "bubblewrap"])
@pytest.mark.parametrize("below", ["", "deep/er"])
def test_paths_below_var_tmp_are_shown(elsewhere: str, below: str, enforcer: str) -> None:
    """There the cage has a directory instead of its link, in which the guest has nothing else of the host."""
    from warmcell import Sandbox

    directory = os.path.join(elsewhere, below)
    os.makedirs(directory, exist_ok=True)
    Path(directory, "note").write_text("shown")
    with Sandbox(directory, work_path="host", enforcer=enforcer) as sandbox:
        result = sandbox.run(_LOOK.format(directory=directory))
        assert (result.stdout, result.stderr) == ("shown False\n", "")
        result = sandbox.run("import os; print(os.listdir('/var/tmp')); open('new', 'w').write('written')")
        assert result.stdout == f"{[os.path.basename(elsewhere)]}\n"
    assert Path(directory, "new").read_text() == "written"
    assert not os.path.lexists("/var/tmp/made")


@pytest.mark.needs("user namespaces")
def test_var_tmp_itself_is_shown(elsewhere: str) -> None:
    from warmcell import ExecRequest, ProcessBackend, SandboxPolicyBuilder

    policy = SandboxPolicyBuilder().allow_read("/var/tmp").build()
    request = ExecRequest("python", "import os; print(os.path.islink('/var/tmp'), os.listdir('/var/tmp'))", 30)
    with ProcessBackend(policy=policy) as backend:
        shown = backend.execute_blocking(request).stdout
    assert shown.startswith("False") and os.path.basename(elsewhere) in shown


@pytest.mark.needs("user namespaces")
def test_an_interpreter_may_be_below_var_tmp(elsewhere: str) -> None:
    from warmcell import ProcessConfig, Sandbox

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{elsewhere}/venv"], check=True, timeout=120)
    with Sandbox(config=ProcessConfig(python_path=f"{elsewhere}/venv/bin/python")) as sandbox:
        result = sandbox.run("import sys; print(sys.prefix); open('/var/tmp/made', 'w').close()")
    assert (result.stdout, result.stderr) == (f"{elsewhere}/venv\n", "")


def test_an_interpreter_may_be_named_by_a_way_around() -> None:
    """`bin/../bin/python`: in the cage there may be no `bin` to go back from."""
    directory, name = os.path.split(sys.executable)
    around = os.path.join(directory, os.pardir, os.path.basename(directory), name)
    assert outcome("backend", python=around) == [0, "hello\n", ""]


@pytest.mark.parametrize("what", ["backend", "sandbox"])
@pytest.mark.parametrize("kilobytes", [1_000_000, 4_000_000])
def test_too_little_address_space_is_told_and_never_printed_by_the_guest(what: str, kilobytes: int) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({kilobytes << 10},) * 2)\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", limited, what], capture_output=True, text=True, timeout=120)
    name, fault, text = json.loads(done.stdout)
    assert (name, fault) == ("ExecutionFailed", "host")
    assert "address space" in text


def test_a_cache_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    require(os.geteuid() != 0, "root may write everywhere")
    expected = [0, "hello\n", ""]
    assert outcome("backend", XDG_CACHE_HOME=str(tmp_path)) == expected
    directories = [tmp_path / "warmcell" / "wasm", tmp_path / "warmcell", tmp_path]
    for directory in directories:
        directory.chmod(0o500)
    try:
        assert outcome("backend", XDG_CACHE_HOME=str(tmp_path)) == expected
        assert outcome.stderr == ""  # type: ignore[attr-defined]
    finally:
        for directory in reversed(directories):
            directory.chmod(0o700)


def test_a_cache_that_cannot_be_kept_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    twice = PROGRAM.replace(
        "with WasmBackend() as backend:", "for _ in range(3):\n          with WasmBackend() as backend:"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file")}
    done = subprocess.run(
        [sys.executable, "-c", twice, "backend"], capture_output=True, text=True, timeout=120, env=environment
    )
    assert json.loads(done.stdout) == [0, "hello\n", ""]
    assert done.stderr.count("cannot cache compiled modules") == 1


def test_a_disk_that_fills_up_costs_the_cache_and_nothing_else(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: the write stops half-way, with an error."""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n{PROGRAM}"
    command = [sys.executable, "-c", limited, "backend"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert json.loads(done.stdout)[:2] == [0, "hello\n"], done
    assert {item.name for item in (tmp_path / "warmcell" / "wasm").iterdir()} == {"secret"}


def test_a_sandbox_without_room_for_its_temporary_directory_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from warmcell import Sandbox, SandboxError

    def full(**_: object) -> str:
        raise OSError(28, "No space left on device", "/tmp/warmcell-tmp-x")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(SandboxError, match="No space") as caught, Sandbox(str(tmp_path), backend="wasm") as sandbox:
        sandbox.sh("true")
    assert caught.value.fault == "host"
