"""Programs that Warmcell is a part of: frozen, patched, archived, of another kind. It works, or says what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipapp
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from tests.helpers import require
from tests.hosts import conditions
from tests.hosts.running import ATTEMPT, on

from warmcell import ExecRequest, ProcessBackend, ProcessConfig, SandboxPolicyBuilder
from warmcell.lifetime import host_program
from warmcell.lifetime.host_program import base_executable

ROOT = Path(__file__).resolve().parents[2]

RUN_BY_EVERY_DOOR = """
import json
from warmcell import ExecRequest, ProcessBackend, ProcessConfig, SandboxError, WasmBackend, Sandbox, get_enforcer, run
config = ProcessConfig()
request = ExecRequest("python", "print(6 * 7)", 60)

def outcome(door):
    try:
        return door()
    except SandboxError as error:
        return [type(error).__name__, error.fault, str(error)]

print(json.dumps([
    outcome(lambda: run("print(6 * 7)").stdout),
    outcome(lambda: ProcessBackend(ProcessConfig(preload=["json"])).execute_blocking(request).stdout),
    outcome(lambda: ProcessBackend(enforcer="bubblewrap").execute_blocking(request).stdout),
    outcome(lambda: get_enforcer("native").wrap_command("/bin/true", (), SandboxPolicy()).argv),
    outcome(lambda: WasmBackend().execute_blocking(ExecRequest("wasm", "(module (func (export \\"_start\\")))", 60)).stdout),
    outcome(lambda: Sandbox(backend="wasm").sh("echo 42").stdout),
]))
""".replace("get_enforcer, run", "get_enforcer, run, SandboxPolicy")


def answers(code: str, *prefix: str, **environment: str) -> list[list[str]]:
    command = [*prefix, sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    said: list[list[str]] = json.loads(done.stdout)
    return said


@pytest.fixture
def frozen(tmp_path: Path) -> tuple[str, Path]:
    """What a frozen program is to us: `sys.frozen`, and an executable that would run the program again."""
    runs = tmp_path / "runs"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho again >> {runs}\n")
    program.chmod(0o755)
    return f"import sys; sys.frozen = True; sys.executable = sys._base_executable = {str(program)!r}\n", runs


def test_a_frozen_program_is_never_started_again(frozen: tuple[str, Path]) -> None:
    begin, runs = frozen
    for name, fault, text in answers(begin + RUN_BY_EVERY_DOOR):
        assert (name, fault) == ("BackendUnavailable", "host")
        assert "this is a frozen program" in text and "ProcessConfig(python_path=" in text
    assert not runs.exists()


def test_an_interpreter_by_another_name_is_asked_for(tmp_path: Path, frozen: tuple[str, Path]) -> None:
    """Python in another program: `sys.executable` is that program."""
    begin, runs = frozen
    for name, _, text in answers(begin.replace("sys.frozen = True; ", "") + RUN_BY_EVERY_DOOR):
        assert name == "BackendUnavailable" and "Python is embedded in" in text and "python_path=" in text
    assert not runs.exists()


def test_a_frozen_program_that_names_an_interpreter_has_one(frozen: tuple[str, Path]) -> None:
    begin, runs = frozen
    code = RUN_BY_EVERY_DOOR.replace("ProcessConfig()", f"ProcessConfig(python_path={base_executable()!r})")
    code = code.replace('run("print(6 * 7)").stdout', "ProcessBackend(config).execute_blocking(request).stdout")
    assert answers(begin + code)[0] == "42\n"
    assert not runs.exists()


def test_a_program_that_was_started_as_an_interpreter_ends_at_once(tmp_path: Path) -> None:
    """The second line of defence, where the first one took its name for an interpreter's."""
    runs = tmp_path / "runs"
    program = tmp_path / "python-like"
    text = f"open({str(runs)!r}, 'a').write('again '); import warmcell; warmcell.run('1')"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{text}"\n')
    program.chmod(0o755)
    code = f"import sys; sys.executable = sys._base_executable = {str(program)!r}\n" + RUN_BY_EVERY_DOOR
    name, fault, said = answers(code)[0]
    assert (name, fault) == ("BackendUnavailable", "host") and "is not a Python interpreter" in said
    assert 1 <= runs.read_text().count("again") <= 10  # one for each door, none by a program that was started


def test_nothing_is_started_by_the_name_that_this_program_has() -> None:
    """`sys.executable` is looked at in one place, which knows whether it is an interpreter."""
    sources = (ROOT / "src" / "warmcell").rglob("*.py")
    users = {
        f"{path.parent.name}/{path.name}"
        for path in sources
        if re.search(r"^[^#]*[\[(=]\s*sys\.executable\b", path.read_text(), re.M)
    }
    known = {"lifetime/host_program.py", "python/worker.py", "live/session_magics.py", "languages/python.py"}
    assert users <= known, "that place, what runs as a guest, and a text that it runs"


def test_the_mark_of_children_is_one_word() -> None:
    source = (ROOT / "src" / "warmcell" / "__init__.py").read_text()
    assert f'"{host_program.CHILD_MARK}" in os.environ' in source
    assert f'b"{host_program.NOT_AN_INTERPRETER}\\n"' in source


@pytest.mark.parametrize("patch", ["patch_all()", "patch_socket()", "patch_thread()"])
def test_gevents_patches_are_refused_before_anything_hangs(patch: str) -> None:
    require(find_spec("gevent") is not None, "gevent is not installed")
    code = f"import gevent.monkey; gevent.monkey.{patch}\n" + RUN_BY_EVERY_DOOR
    said = answers(code)
    del said[3]  # a command line is only put together
    assert len(said) == 5
    for name, fault, text in said:
        assert (name, fault) == ("BackendUnavailable", "host")
        assert "gevent has patched" in text and "python -m warmcell run" in text


def test_gevent_without_patches_is_nobodys_concern() -> None:
    require(find_spec("gevent") is not None, "gevent is not installed")
    assert answers("import gevent, gevent.monkey\n" + RUN_BY_EVERY_DOOR)[0] == "42\n"


def test_under_trio_the_blocking_form_is_named() -> None:
    require(find_spec("trio") is not None, "trio is not installed")
    code = """
import json, trio
from warmcell import AsyncSandbox, ExecRequest, ProcessBackend, SandboxError

async def main():
    request = ExecRequest("python", "print(6 * 7)", 60)
    with ProcessBackend() as backend:
        try:
            await backend.execute(request)
        except SandboxError as error:
            outcome = [type(error).__name__, error.fault, str(error)]
        blocking = await trio.to_thread.run_sync(backend.execute_blocking, request)
    try:
        async with AsyncSandbox() as sandbox:
            await sandbox.sh("echo 42")
    except SandboxError as error:
        other = str(error)
    print(json.dumps([outcome, [blocking.stdout], [other]]))

trio.run(main)
"""
    (name, fault, text), blocking, other = answers(code)
    assert (name, fault, blocking) == ("InvalidRequest", "caller", ["42\n"])
    assert "no asyncio event loop" in text and "trio.to_thread.run_sync" in text and text in other


@pytest.mark.needs("linux", "user namespaces")
def test_in_a_subinterpreter_it_works_or_says_what_does() -> None:
    """What needs no thread of ours works in one that may have none."""
    doors = RUN_BY_EVERY_DOOR.replace(
        "outcome(lambda: get_enforcer",
        "outcome(lambda: asyncio.run(ProcessBackend().execute(request)).stdout),\n"
        "    outcome(lambda: list(ProcessBackend().run_many_blocking([request]))[0].result.stdout),\n"
        "    outcome(lambda: get_enforcer",
    )
    code = f"""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import sys
own = interpreters.create()
failure = interpreters.run_string(own, f"import asyncio, sys; sys.path[:] = {{sys.path!r}}\\n" + {doors!r} + "sys.stdout.flush()")
assert failure is None, failure
"""
    plain, preloaded, bubblewrap, awaited, many, _, wasm, shell = answers(code)
    assert (plain, wasm) == ("42\n", "")
    for name, fault, text in (preloaded, awaited, many, shell):
        assert (name, fault) == ("BackendUnavailable", "host")
        assert "this is a subinterpreter" in text and "execute_blocking" in text
    assert bubblewrap[:2] == ["EnforcerUnavailable", "host"] and "subinterpreters" in bubblewrap[2]


def test_in_an_archive_it_says_so(tmp_path: Path) -> None:
    source = tmp_path / "source"
    copytree(ROOT / "src" / "warmcell", source / "warmcell", ignore=ignore_patterns("*.wasm", "__pycache__"))
    (source / "__main__.py").write_text(RUN_BY_EVERY_DOOR)
    archive = tmp_path / "program.pyz"
    zipapp.create_archive(source, archive)
    done = subprocess.run(
        [sys.executable, "-I", str(archive)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, fault, text in json.loads(done.stdout)[:3]:
        assert (name, fault) == ("BackendUnavailable", "host")
        assert "imported from an archive" in text and "program.pyz" in text


def test_the_c_locale_does_not_change_what_was_typed() -> None:
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "warmcell", "run", "python", "-c", "import os; print('ü', os.environ['X'])"]
    done = subprocess.run([*command, "--env", "X=ä"], capture_output=True, timeout=60, env={**os.environ, **plain})
    assert done.stdout == "ü ä\n".encode(), done.stderr


@pytest.mark.needs("linux", "user namespaces")
def test_in_our_own_cage_a_second_one_is_refused_by_name() -> None:
    """And WebAssembly is offered, which works there."""
    policy = SandboxPolicyBuilder().allow_process_spawn().allow_read(str(ROOT)).build()
    config = ProcessConfig(python_path=sys.executable)
    code = f"import runpy, sys; sys.argv[1:] = ['process', 'command', 'wasm', 'doctor']\nrunpy.run_path({ATTEMPT!r}, run_name='__main__')"
    with ProcessBackend(config, policy=policy) as backend:
        request = ExecRequest("python", code, 60, memory_limit_mb=2048, env={"PYTHONPATH": f"{ROOT}/src"})
        result = backend.execute_blocking(request)
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    for kind, _, fault, message, hint in (said["process"], said["command"]):
        assert (kind, fault) == ("error", "host") and "already inside a cage of Warmcell" in message
        assert "WasmBackend" in hint
    assert said["doctor"][0] is False and "already inside a cage" in said["doctor"][1][1]
    assert said["wasm"][0] == "42\n"


@pytest.mark.needs("linux", "user namespaces")
def test_without_room_for_its_files_a_sandbox_says_where() -> None:
    require(not sys.executable.startswith("/tmp/"), "this checkout lies in /tmp, which the test fills")
    said = on(conditions.NO_ROOM, "sandbox", cwd="/proc", TMPDIR="/tmp")["sandbox"]
    assert said[:3] == ["error", "ExecutionFailed", "host"]
    assert "could not make a temporary directory" in said[3] and "TMPDIR" in said[4]


@pytest.mark.needs("linux", "user namespaces")
def test_a_read_only_home_with_a_cache_in_it_is_read(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
    assert on(conditions.ORDINARY, "wasm", **environment)["wasm"][0] == "42\n"
    read_only = conditions.as_root(f"mount --bind {tmp_path} {tmp_path}; mount -o remount,bind,ro {tmp_path}")
    assert on(read_only, "wasm", **environment)["wasm"][:2] == ["42\n", ""]
