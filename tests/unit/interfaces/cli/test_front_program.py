"""The front program of the command: it starts what the command would start, and otherwise stays out of the way."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import ROOT
from tests.helpers import until

from warmcell.cage.environment import CAGED_ENV
from warmcell.enforcers.host import find_in_wheel
from warmcell.interfaces.cli import main
from warmcell.lifetime import late_site
from warmcell.pool.manager_process import first_order
from warmcell.pool.prestarted_manager import BOOT, ENVIRONMENT

pytestmark = pytest.mark.needs("linux", "gcc", "user namespaces")

BASE = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
SCRIPT = (ROOT / "bin/warmcell").read_text().partition("\n")[2]

#: In the interpreter's place: as a manager's it writes down how it was started, and as the command's it tells both.
STAND_IN = """
import json, os, signal, socket, sys, time
heard = os.path.dirname(sys.argv[0]) + "/heard"
if sys.argv[1:2] == ["-I"]:
    seen = {
        "argv": sys.argv,
        "environ": dict(os.environ),
        "leads session": os.getsid(0) == os.getpid(),
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "order": json.loads(socket.socket(fileno=3).recv(4096) or "null"),
    }
    with open(heard + ".new", "w") as file:
        json.dump(seen, file)
    os.rename(heard + ".new", heard)
    sys.exit()
handed = os.environ.get("WARMCELL_MANAGER")
seen = {"argv": sys.argv[1:], "handed": handed, "manager": None}
if handed:
    numbers = list(map(int, handed.split("\\n")[0].split()))
    seen |= {"has_order": numbers[5], "interpreter": handed.split("\\n")[1], "package": handed.split("\\n")[2]}
    if not numbers[5]:
        os.close(numbers[1])
    os.waitpid(numbers[0], 0)
    with open(heard) as file:
        seen["manager"] = json.load(file)
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("front", ROOT / "modules/front.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    directory = tmp_path_factory.mktemp("front")
    made: Path | None = module.compile_front(directory)
    assert made is not None, (directory / "complaints").read_text()
    return made


def install(compiled: Path, prefix: Path, script: str = SCRIPT, first_line: str = f"#!{sys.executable}") -> Path:
    """As an installer lays it out: both commands, and the package where the interpreter's name says."""
    (prefix / "bin").mkdir(parents=True)
    packages = prefix / "lib" / os.path.basename(BASE) / "site-packages"
    packages.mkdir(parents=True)
    (packages / "warmcell").symlink_to(ROOT / "src/warmcell")
    behind = prefix / "bin/warmcell-python"
    behind.write_text(f"{first_line}\n{script}")
    behind.chmod(0o755)
    shutil.copy(compiled, prefix / "bin/warmcell")
    return prefix / "bin/warmcell"


def run(command: Path, *words: str | bytes, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **environment}
    argv = [os.fsencode(command), *map(os.fsencode, words)]
    return subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def run_witness(command: Path, *words: str | bytes, **environment: str) -> dict[str, Any]:
    ended = run(command, *words, **environment)
    assert ended.returncode == 0, ended.stderr
    seen: dict[str, Any] = json.loads(ended.stdout)
    return seen


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    stand_in = tmp_path / os.path.basename(BASE)
    stand_in.write_text(f"#!{BASE}\n{STAND_IN}")
    stand_in.chmod(0o755)
    return stand_in


@pytest.fixture
def witness(compiled: Path, interpreter: Path, tmp_path: Path) -> Path:
    return install(compiled, tmp_path / "prefix", "", f"#!{interpreter}")


@pytest.mark.parametrize("word", ["run", "sh"])
def test_the_manager_is_what_the_command_itself_would_start(witness: Path, interpreter: Path, word: str) -> None:
    package = f"{witness.parents[1]}/lib/{interpreter.name}/site-packages/warmcell"
    seen = run_witness(witness, word, "x", SECRET="of the caller")
    manager = seen["manager"]
    assert manager["argv"] == [str(interpreter), "-I", "-S", "-c", BOOT, f"{package}/cage"]
    assert manager["environ"] == ENVIRONMENT and ENVIRONMENT.items() >= CAGED_ENV.items()
    assert (manager["leads session"], manager["descriptors"], manager["blocked"]) == (True, [0, 1, 2, 3], [])
    assert (seen["interpreter"], seen["package"], seen["has_order"]) == (str(interpreter), package, 1)
    packages = "" if word == "run" else os.path.dirname(package)
    order = first_order("namespaces", packages=packages)
    worker = f"{package}/guest/{os.path.basename(order['worker'])}"
    assert manager["order"] == {**order, "worker": worker, "once": True}
    behind = f"{witness}-python"
    assert seen["argv"] == ["-S", behind, word, "x"]


@pytest.mark.parametrize("words", [[], ["doctor"], ["run", "--help"], ["sh", "--help"], ["--version"]])
def test_other_commands_start_nothing_and_have_their_site(witness: Path, words: list[str]) -> None:
    seen = run_witness(witness, *words, WARMCELL_MANAGER="1 2 3 4 5 1\nsomebody\nelse's")
    assert (seen["argv"], seen["handed"]) == ([f"{witness}-python", *words], None)


def test_words_arrive_as_they_are(witness: Path) -> None:
    words = ["run", "python", "", "a b", "'\"$x", "\n", "--", "-S"]
    assert run_witness(witness, *words)["argv"][2:] == words
    assert run_witness(witness, "run", b"\xff\xfe")["argv"][2:] == ["run", "\udcff\udcfe"]


def test_a_link_to_the_command_leads_to_it(witness: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere"
    link.symlink_to(witness)
    assert run_witness(link, "run", "x")["has_order"] == 1


def test_a_first_line_that_says_more_is_left_to_the_kernel(compiled: Path, interpreter: Path, tmp_path: Path) -> None:
    seen = run_witness(install(compiled, tmp_path / "prefix", "", f"#!{interpreter} -B"), "run", "x")
    assert (seen["argv"][0], seen["handed"]) == ("-B", None)


@pytest.mark.parametrize("place", ["lib64/{}/site-packages", "lib/{}/dist-packages"])
def test_the_package_is_found_where_other_systems_have_it(witness: Path, interpreter: Path, place: str) -> None:
    prefix = witness.parents[1]
    packages = prefix / place.format(interpreter.name)
    packages.parent.mkdir(parents=True, exist_ok=True)
    (prefix / "lib" / interpreter.name / "site-packages").rename(packages)
    assert run_witness(witness, "run", "x")["package"] == f"{packages}/warmcell"


def test_without_the_package_where_it_should_be_the_script_does_all(witness: Path) -> None:
    shutil.rmtree(witness.parents[1] / "lib")
    assert run_witness(witness, "run", "x")["handed"] is None


@pytest.mark.parametrize("name", ['a"b', "a\\b", "schön"])
def test_a_path_that_json_would_escape_is_not_told(
    compiled: Path, interpreter: Path, tmp_path: Path, name: str
) -> None:
    seen = run_witness(install(compiled, tmp_path / name, "", f"#!{interpreter}"), "run", "x")
    assert (seen["has_order"], seen["manager"]["order"]) == (0, None)


def test_without_its_script_it_says_which_file_is_missing(witness: Path) -> None:
    witness.with_name("warmcell-python").unlink()
    ended = run(witness, "run", "x")
    assert ended.returncode == 126 and "warmcell-python" in ended.stderr


@pytest.fixture
def command(compiled: Path, tmp_path: Path) -> Path:
    return install(compiled, tmp_path)


def assert_none_left(command: Path) -> None:
    """No manager of this installation: those of tests beside this one have other paths."""
    until(lambda: not any(str(command.parents[1]) in _cmdline(pid) for pid in os.listdir("/proc") if pid.isdigit()))


def _cmdline(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_a_run_is_a_run(command: Path) -> None:
    ended = run(command, "run", "python", "-c", "import sys; print(6*7, sys.argv[1:]); sys.exit(3)", "--", "a", "b c")
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "42 ['a', 'b c']\n", "")
    look = "print(open('/proc/self/maps').read(), open('/proc/self/cmdline').read())"
    assert str(command.parents[1]) not in run(command, "run", "python", "-c", look).stdout
    assert_none_left(command)


def test_its_manager_is_the_one_that_was_handed_over(command: Path) -> None:
    """Nobody starts a second."""
    script = command.with_name("warmcell-python")
    script.write_text(script.read_text().replace("import os\n", "import os\n\nos.posix_spawnp = None\n", 1))
    ended = run(command, "run", "python", "-c", "print(1)")
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr
    assert run(script, "run", "python", "-c", "print(1)").returncode != 0


@pytest.mark.parametrize(
    "words",
    [
        ["--record", "/dev/null", "python", "-c", "print(7)"],
        ["--timeout", "nonsense", "python", "-c", "print(7)"],
        ["--enforcer", "none", "python", "-c", "print(7)"],
        ["no-such-language", "-c", "print(7)"],
    ],
)
def test_a_manager_that_was_not_needed_is_gone(command: Path, words: list[str]) -> None:
    same = subprocess.run(
        [sys.executable, str(ROOT / "bin/warmcell"), "run", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    ended = run(command, "run", *words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (same.returncode, same.stdout, same.stderr)
    assert_none_left(command)


def test_garbage_is_survived_by_the_script(command: Path) -> None:
    for words in ("x", "1 2 3 4 5 1\nx\ny", f"{os.getpid()} 0 1 2 0 0\n{BASE}\n{ROOT / 'src/warmcell'}"):
        ended = run(command.with_name("warmcell-python"), "run", "python", "-c", "print(1)", WARMCELL_MANAGER=words)
        assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


def test_it_is_called_warmcell(command: Path) -> None:
    running = subprocess.Popen([command, "run", "python", "-c", "import time; time.sleep(30)"])
    try:
        deadline = time.monotonic() + 20
        while Path(f"/proc/{running.pid}/comm").read_text() != "warmcell\n":
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        running.terminate()
        running.wait()


def test_site_runs_late_where_it_is_due_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import site

    runs: list[int] = []
    monkeypatch.setattr(site, "main", lambda: runs.append(1))
    late_site.run_site()
    assert runs == []
    monkeypatch.setattr(late_site, "is_due", True)
    late_site.run_site()
    late_site.run_site()
    assert runs == [1]


@pytest.mark.parametrize(
    ("words", "is_run"),
    [
        (["run", "python", "-c", "1"], False),
        (["run", "--timeout", "5", "--json", "python", "-c", "1"], False),
        (["run", "javascript", "-c", "1"], True),
        (["run", "--allow-domain", "example.org", "python", "-c", "1"], True),
        (["run", "--record", "x", "python", "-c", "1"], True),
        (["run", "program.py"], True),
        (["sh", "echo hi"], False),
        (["sh", "--write", "echo hi"], False),
        (["sh", "--allow-domain", "example.org", "echo hi"], True),
        (["sh"], True),
        (["doctor"], True),
    ],
)
def test_who_may_need_packages_has_site_run_first(
    words: list[str], is_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    monkeypatch.setattr(late_site, "run_site", lambda: runs.append(1))
    monkeypatch.setattr("warmcell.interfaces.cli._start_ahead", lambda *_, **__: None)
    monkeypatch.setattr("warmcell.interfaces.cli._sh", lambda *_: 0)
    monkeypatch.setattr("warmcell.interfaces.cli.run.run", lambda _: 0)
    monkeypatch.setattr(
        "warmcell.interfaces.cli.parser.parse", lambda _: SimpleNamespace(quiet=False, handler=lambda _: 0)
    )
    assert main(words) == 0 and bool(runs) == is_run


def test_who_looks_for_a_program_in_a_package_has_site_run_first(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    monkeypatch.setattr(late_site, "run_site", lambda: runs.append(1))
    assert find_in_wheel("no_such_package", "bin") is None and runs == [1]
