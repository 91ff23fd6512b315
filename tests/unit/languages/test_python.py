"""Python guests: the interpreter that is chosen, what it sees, and that it behaves as a script does."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.unit.languages.running import run_program

from warmcell.core.errors import BackendUnavailable
from warmcell.languages import python
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import PythonRuntime, base_executable, command_line, find_interpreter

DEFAULT = ProcessConfig()


def run(
    code: str, tmp_path: Path, config: ProcessConfig = DEFAULT, **options: object
) -> subprocess.CompletedProcess[str]:
    return run_program(PythonRuntime().prepare(code, config), tmp_path, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with one module in its site-packages."""
    place = tmp_path_factory.mktemp("venv") / "env"
    venv.create(place, with_pip=False, symlinks=True)
    site = next(place.glob("lib/python*/site-packages"))
    (site / "only_here.py").write_text("value = 'from the environment'")
    return place


def test_program_is_plain_data_with_a_warm_worker() -> None:
    program = PythonRuntime().prepare("print('ä')", DEFAULT)
    assert dict(program.files) == {"main.py": "print('ä')".encode()}
    assert (program.main_file, program.worker, program.build) == ("main.py", "python", None)
    assert program.argv[0] == os.path.realpath(program.argv[0])
    assert program.argv[-1] == "{code}/main.py"
    assert dict(program.env) == {}


def test_site_packages_are_left_out_only_for_the_default_interpreter() -> None:
    assert "-S" in command_line("/usr/bin/python3", has_site=False)
    assert "-S" not in command_line("/usr/bin/python3", has_site=True)
    for has_site in (True, False):
        argv = command_line("/usr/bin/python3", has_site=has_site)
        assert "-s" in argv and not {"-E", "-I"} & set(argv)


def test_default_is_the_base_interpreter_not_the_virtual_environment() -> None:
    interpreter = find_interpreter(DEFAULT)
    assert interpreter.path == base_executable()
    assert not (Path(interpreter.path).parent.parent / "pyvenv.cfg").exists()
    assert not interpreter.has_site


def test_default_costs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("a process was started")

    python._interpreter.cache_clear()
    monkeypatch.setattr(python, "query_tool", refuse)
    assert find_interpreter(DEFAULT).version == tuple(sys.version_info[:3])


def test_preload_means_the_callers_own_environment() -> None:
    interpreter = find_interpreter(ProcessConfig(preload=["json"]))
    assert interpreter.has_site
    if sys.prefix != sys.base_prefix:
        assert interpreter.path == sys.executable
        assert any(sys.prefix == path or sys.prefix.startswith(path + "/") for path in interpreter.runtime_paths)


def test_an_explicit_virtual_environment_is_kept(environment: Path, tmp_path: Path) -> None:
    config = ProcessConfig(python_path=environment / "bin" / "python")
    interpreter = find_interpreter(config)
    assert interpreter.path == str(environment / "bin" / "python")
    assert str(environment) in interpreter.runtime_paths
    done = run("import only_here, sys; print(only_here.value); print(sys.prefix)", tmp_path, config)
    assert done.stdout.splitlines() == ["from the environment", str(environment)]


def test_every_link_of_the_interpreter_is_in_the_runtime_paths(environment: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "bin"
    moved.mkdir(parents=True)
    (moved / "python").symlink_to(environment / "bin" / "python")
    chain = python.runtime_paths(str(moved / "python"), (), ())
    assert {str(moved.parent), str(environment)} <= set(chain)
    (moved.parent / ".env").touch()
    (tmp_path / "elsewhere/bin/python3").symlink_to(environment / "bin" / "python")
    chain = python.runtime_paths(str(moved / "python3"), (), ())
    assert {str(moved / "python3"), str(environment)} <= set(chain)


def test_a_shim_that_is_a_script_is_seen_through(tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\nexec "{base_executable()}" "$@"\n')
    shim.chmod(0o755)
    assert find_interpreter(ProcessConfig(python_path=shim)).path == base_executable()


def test_a_home_directory_as_prefix_is_not_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for part in ("bin", "lib/python3.11", ".ssh"):
        (home / part).mkdir(parents=True)
    (home / "bin" / "python3").touch()
    monkeypatch.setenv("HOME", str(home))
    paths = python.runtime_paths(
        str(home / "bin/python3"), (str(home),) * 4, (str(home / "lib/python3.11"), str(home / "lib/python3.11/no"))
    )
    assert set(paths) == {str(home / "bin/python3"), str(home / "lib/python3.11")}


@pytest.mark.parametrize("path", ["/nowhere/python3", "no-such-python-anywhere", "/usr"])
def test_a_missing_interpreter_says_which(path: str) -> None:
    with pytest.raises(BackendUnavailable, match="python_path") as caught:
        find_interpreter(ProcessConfig(python_path=path))
    assert path in str(caught.value)


def test_something_that_is_not_python_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho hello\n")
    fake.chmod(0o755)
    with pytest.raises(BackendUnavailable, match="does not answer like a Python"):
        find_interpreter(ProcessConfig(python_path=fake))


def test_an_old_interpreter_is_refused(tmp_path: Path) -> None:
    facts = {"executable": "/x", "version": [3, 8, 1], "prefixes": ["/x"] * 4, "libraries": ["/x"]}
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\nWARMCELL {json.dumps(facts)}\nEND\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(BackendUnavailable, match=r"is Python 3\.8\.1; guests need 3\.9"):
        find_interpreter(ProcessConfig(python_path=fake))


def test_an_upgraded_interpreter_is_asked_again(tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\nexec "{base_executable()}" "$@"\n')
    shim.chmod(0o755)
    find_interpreter(ProcessConfig(python_path=shim))
    shim.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(BackendUnavailable, match="exit status 3"):
        find_interpreter(ProcessConfig(python_path=shim))


# --- how a guest behaves -------------------------------------------------------------------------------------------


def test_output_exit_status_and_stdin(tmp_path: Path) -> None:
    done = run("import sys; print(sys.stdin.read().upper()); sys.exit(42)", tmp_path, stdin="hello")
    assert (done.stdout, done.returncode) == ("HELLO\n", 42)


@pytest.mark.parametrize(
    ("code", "status"), [("exit(7)", 7), ("quit(3)", 3), ("raise SystemExit('bye')", 1), ("exit()", 0), ("1/0", 1)]
)
def test_ways_to_end(code: str, status: int, tmp_path: Path) -> None:
    assert run(code, tmp_path).returncode == status


def test_help_and_license_exist(tmp_path: Path) -> None:
    assert run("print(callable(help), callable(license), callable(copyright))", tmp_path).stdout == "True True True\n"


def test_traceback_starts_in_the_guests_file(tmp_path: Path) -> None:
    done = run("def f():\n    raise ValueError('oops')\nf()", tmp_path)
    assert "<string>" not in done.stderr and "in _start" not in done.stderr
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert 'main.py", line 3, in <module>' in done.stderr.splitlines()[1]
    assert done.stderr.splitlines()[-1] == "ValueError: oops"


def test_syntax_error_reads_as_usual(tmp_path: Path) -> None:
    done = run("x = (", tmp_path)
    assert done.returncode == 1
    assert 'main.py", line 1' in done.stderr and "SyntaxError" in done.stderr and "in _start" not in done.stderr


def test_it_is_main_and_knows_its_file(tmp_path: Path) -> None:
    code = (
        "import sys; print(__name__, __file__ == sys.argv[0], len(sys.argv), sorted(n for n in dir() if n[0] != '_'))"
    )
    assert run(code, tmp_path).stdout == "__main__ True 1 ['sys']\n"


def test_future_imports_and_source_inspection(tmp_path: Path) -> None:
    code = "from __future__ import annotations\nimport inspect\ndef f(): return 1\nprint(inspect.getsource(f))"
    assert "def f(): return 1" in run(code, tmp_path).stdout


def test_the_working_directory_is_importable_and_the_callers_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "helper.py").write_text("value = 5")
    (tmp_path / "callers").mkdir()
    (tmp_path / "callers" / "secret_helper.py").write_text("value = 6")
    monkeypatch.chdir(tmp_path / "callers")
    code = "import helper, importlib.util as u; print(helper.value, u.find_spec('secret_helper'))"
    assert run(code, tmp_path).stdout == "5 None\n"


def test_no_site_packages_by_default(tmp_path: Path) -> None:
    code = "import sys; print([p for p in sys.path if 'site-packages' in p or 'dist-packages' in p])"
    assert run(code, tmp_path).stdout == "[]\n"


def test_variables_for_python_in_the_request_work(tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "extra_module.py").write_text("value = 'extra'")
    env = {"PYTHONHASHSEED": "0", "PYTHONPATH": str(tmp_path / "extra")}
    code = "import sys, extra_module; print(sys.flags.hash_randomization, extra_module.value)"
    assert run(code, tmp_path, env=env).stdout == "0 extra\n"


@pytest.mark.parametrize("env", [{}, {"A": "1"}, {"LC_CTYPE": "C.UTF-8"}, {"LANG": "C.UTF-8", "B": "ü"}])
def test_the_environment_is_exactly_what_was_given(env: dict[str, str], tmp_path: Path) -> None:
    done = run("import os, json; print(json.dumps(dict(os.environ)))", tmp_path, env=env)
    assert json.loads(done.stdout) == env
    child = "import subprocess; print(subprocess.run(['/usr/bin/env'], capture_output=True, text=True).stdout)"
    assert sorted(run(child, tmp_path, env=env).stdout.split()) == sorted(f"{k}={v}" for k, v in env.items())


def test_unicode_goes_through_without_a_locale(tmp_path: Path) -> None:
    assert run("print('żółć 🦀'); print(input())", tmp_path, stdin="naïve").stdout == "żółć 🦀\nnaïve\n"


def test_multiprocessing_by_spawn_finds_main_again(tmp_path: Path) -> None:
    code = """
import multiprocessing as m
def double(x): return 2 * x
if __name__ == "__main__":
    with m.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
"""
    assert run(code, tmp_path).stdout == "[2, 4]\n"


def test_threads_and_atexit_finish_after_an_error(tmp_path: Path) -> None:
    code = """
import atexit, threading, time
atexit.register(lambda: print("atexit"))
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
raise KeyError("x")
"""
    done = run(code, tmp_path)
    assert (done.stdout.split(), done.returncode) == (["thread", "atexit"], 1)


def test_the_guests_own_excepthook_is_used(tmp_path: Path) -> None:
    code = "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\nraise KeyError"
    assert run(code, tmp_path).stdout == "hook KeyError\n"
