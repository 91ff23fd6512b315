"""Where the guest sees the work directory, and which of the host's programs it finds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell import FakeBackend, InvalidRequest, ProcessBackend, ProcessConfig, Sandbox, SandboxPolicyBuilder
from warmcell.core.errors import EnforcerUnavailable
from warmcell.core.types import Limits
from warmcell.enforcers.bubblewrap import BubblewrapEnforcer
from warmcell.languages.host_tools import host_tools
from warmcell.lifetime.host_program import base_executable
from warmcell.workspace.mount_points import MountPoint, guest_work_path

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


def environment(place: Path) -> Path:
    """A virtual environment with one package in it, `packed`, and one program that starts by its absolute path."""
    subprocess.run([base_executable(), "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    packages = next((place / "lib").glob("python*")) / "site-packages"
    (packages / "packed.py").write_text("ANSWER = 42\n")
    program = place / "bin" / "answer"
    program.write_text(f"#!{python}\nimport packed\nprint(packed.ANSWER)\n")
    program.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with its environment in it, in which the checkout itself is installed as editable."""
    root = tmp_path_factory.mktemp("checkout") / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "mine.py").write_text("import packed\nWHERE = __file__\n")
    environment(root / ".venv")
    packages = next((root / ".venv" / "lib").glob("python*")) / "site-packages"
    (packages / "mine.pth").write_text(f"{root}/src\n")
    return root


def test_a_checkout_works_as_it_is(project: Path) -> None:
    with Sandbox(project, work_path="host") as sandbox:
        assert sandbox.sh("pwd").stdout == f"{project}\n"
        assert sandbox.exec("pwd", cwd="src").stdout == f"{project}/src\n"
        assert sandbox.run("import os; print(os.getcwd())").stdout == f"{project}\n"
        assert sandbox.sh(".venv/bin/answer").stdout == "42\n"
        said = sandbox.exec(".venv/bin/python", ["-c", "import mine; print(mine.WHERE, mine.packed.ANSWER)"])
        assert said.stdout == f"{project}/src/mine.py 42\n"
        sandbox.sh("echo new > made.txt")
        assert sandbox.read_text(f"{project}/made.txt") == sandbox.read_text("made.txt") == "new\n"
        assert "made.txt" in [change.path for change in sandbox.diff()]
        assert sandbox.exec("ls", ["-A", os.path.dirname(project)]).stdout == "project\n"
        sandbox.remove("made.txt")


def test_a_private_directory_at_its_host_path() -> None:
    with Sandbox(work_path="host") as sandbox, sandbox.fork() as fork:
        for each in (sandbox, fork):
            assert each.sh("pwd; ls -d /work").stdout == f"{each.work_dir}\n/work\n"
        assert sandbox.work_dir != fork.work_dir


@pytest.mark.parametrize("enforcer", ["bubblewrap", "landlock"])
def test_other_enforcers_start_in_the_host_path(project: Path, enforcer: str) -> None:
    if enforcer == "bubblewrap":
        try:
            BubblewrapEnforcer().probe()
        except EnforcerUnavailable as reason:
            require(False, str(reason))
    with Sandbox(project, work_path="host", enforcer=enforcer) as sandbox:
        assert sandbox.run("import os; print(os.getcwd())").stdout == f"{project}\n"
        assert sandbox.sh("pwd; .venv/bin/answer").stdout == f"{project}\n42\n"


@pytest.mark.parametrize(
    "place", ["/", "/usr", "/etc", "/etc/ssl", "/home", "/home/sandbox", "/tmp", "/proc/1", "/dev", "/code/x", "/out"]
)
def test_paths_of_the_cage_cannot_be_hidden(place: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        guest_work_path("host", place)
    assert caught.value.field == "work_path"


def test_work_path_is_work_or_host() -> None:
    assert guest_work_path("host", "/home/somebody/project") == "/home/somebody/project"
    for asked in ("/elsewhere", "", "HOST"):
        with pytest.raises(InvalidRequest, match="work_path"):
            Sandbox(work_path=asked)
    with pytest.raises(InvalidRequest, match="work_path"):
        Sandbox(work_path="host", backend="wasm")
    with pytest.raises(InvalidRequest, match="work_path"):
        ProcessBackend(work_path="/nowhere/shown")


def test_the_callers_environment_works_unchanged(tmp_path: Path) -> None:
    """Its packages in Python runs, preloaded or not, and its programs first on the PATH of commands; read-only."""
    python = environment(tmp_path / "env")
    with Sandbox(config=ProcessConfig(python_path=python, preload=["packed"])) as sandbox:
        said = sandbox.run("import sys; print('packed' in sys.modules); import packed; print(packed.ANSWER)")
        assert said.stdout == "True\n42\n"
        assert sandbox.sh("answer; command -v python").stdout == f"42\n{python}\n"
        assert not sandbox.sh(f"echo 'ANSWER = 1' > {packages_of(python)}/packed.py").ok
        assert sandbox.exec("python", ["-c", "import packed; print(packed.ANSWER)"]).stdout == "42\n"


def packages_of(python: Path) -> Path:
    return next((python.parent.parent / "lib").glob("python*")) / "site-packages"


@pytest.mark.attack("S2-02")
def test_no_guest_writes_what_our_processes_start(project: Path) -> None:
    """The interpreter of a zygote runs outside of the cage: in a checkout that guests may write, it is read-only."""
    python = project / ".venv" / "bin" / "python"
    packages = packages_of(python)
    attack = f"echo 'print(0)' > {packages}/sitecustomize.py; mv .venv other; mv .venv/bin x; rm {python}; rm -rf x"
    for work_path in ("host", "/work"):
        with Sandbox(project, work_path=work_path, config=ProcessConfig(python_path=python)) as sandbox:
            assert sandbox.sh("echo yes > writable && rm writable").ok
            sandbox.sh(attack)
            sandbox.sh(attack.replace(str(project), "/work"))
        assert not (packages / "sitecustomize.py").exists()
        assert sorted(os.listdir(project)) == [".venv", "src"] and python.exists()


@pytest.mark.parametrize("name", ["python_path", "node_path", "rustc_path"])
def test_a_program_that_guests_could_change_is_refused(tmp_path: Path, name: str) -> None:
    program = tmp_path / "bin" / "program"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    config = ProcessConfig(**{name: str(program)})
    with pytest.raises(InvalidRequest) as caught:
        Sandbox(tmp_path, config=config)
    assert caught.value.field == name
    policy = SandboxPolicyBuilder().allow_read_write(str(tmp_path)).allow_process_spawn().build()
    with pytest.raises(InvalidRequest):
        ProcessBackend(config, policy=policy)
    Sandbox(mounts=[MountPoint(tmp_path, "/data")], config=config).destroy()
    assert not (tmp_path / "started").exists()


def test_toolchains_of_the_host_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of its own is shown and goes on PATH; a program beside somebody's files shows nothing of them."""
    tree, home = tmp_path / "opt" / "rust", tmp_path / "home"
    for directory in (tree / "bin", tree / "lib", home / "bin"):
        directory.mkdir(parents=True)
    for program, word in ((tree / "bin" / "cargo", "cargo here"), (home / "bin" / "node", "node here")):
        program.write_text(f"#!/bin/sh\necho {word}\n")
        program.chmod(0o755)
    (home / "secret.txt").write_text("canary")
    monkeypatch.setenv("PATH", f"{tree}/bin:{home}/bin:/usr/bin:/bin")
    found = host_tools(ProcessConfig())
    assert str(tree) in found.shown and not any(str(home) in path for path in (*found.shown, *found.path))
    with Sandbox() as sandbox:
        assert sandbox.sh("cargo; command -v cargo").stdout == f"cargo here\n{tree}/bin/cargo\n"
        assert sandbox.run("import subprocess; subprocess.run(['cargo'])").stdout == "cargo here\n"
        assert not sandbox.exec("ls", [str(home)]).ok
        assert "cargo" in sandbox.available_tools()
    with Sandbox(env={"PATH": "/usr/bin"}) as sandbox:
        assert not sandbox.sh("command -v cargo").ok


def test_the_default_toolchain_of_rustup_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, proxies = tmp_path / "rustup", tmp_path / "cargo" / "bin"
    tree = home / "toolchains" / "stable-here"
    for directory in (tree / "bin", tree / "lib", proxies):
        directory.mkdir(parents=True)
    (home / "settings.toml").write_text('version = "12"\ndefault_toolchain = "stable-here"\n')
    (proxies / "rustup").write_text("#!/bin/sh\nexit 9\n")
    (proxies / "rustup").chmod(0o755)
    (proxies / "cargo").symlink_to("rustup")
    monkeypatch.setenv("PATH", str(proxies))
    monkeypatch.setenv("RUSTUP_HOME", str(home))
    assert str(tree) in host_tools(ProcessConfig()).shown
    monkeypatch.setenv("RUSTUP_TOOLCHAIN", "../../etc")
    assert str(tree) not in host_tools(ProcessConfig()).shown


def test_a_backend_object_keeps_its_settings() -> None:
    """What it was made with holds for the sandbox; it stays its maker's."""
    policy = SandboxPolicyBuilder().allow_process_spawn().env("FROM", "policy").build()
    with ProcessBackend(ProcessConfig(python_path=base_executable(), preload=["colorsys"]), policy=policy) as backend:
        with Sandbox(backend=backend, limits=Limits(open_files=70)) as sandbox:
            assert sandbox.sh("pwd; echo $FROM; ulimit -n").stdout == "/work\npolicy\n70\n"
            assert sandbox.run("import sys; print('colorsys' in sys.modules)").stdout == "True\n"
        with pytest.raises(InvalidRequest, match="policy"):
            Sandbox(backend=backend, policy=policy)
        with pytest.raises(InvalidRequest, match="enforcer"):
            Sandbox(backend=backend, enforcer="landlock")
        assert backend.execute_blocking(_echo()).stdout == "hi\n"
    fake = FakeBackend(["answer"])
    with Sandbox(backend=fake) as sandbox:
        assert sandbox.run("1 + 1").stdout == "answer"
    with pytest.raises(InvalidRequest, match="no enforcer"):
        Sandbox(backend=ProcessBackend(enforcer=None))
    with pytest.raises(InvalidRequest, match="work directory"):
        Sandbox(backend=object())  # type: ignore[arg-type]


def _echo() -> object:
    from warmcell import ExecRequest

    return ExecRequest("command", "echo hi", 20)


@pytest.mark.attack("LK-05")
def test_settings_of_preloaded_modules_are_not_inherited(tmp_path: Path) -> None:
    """As matplotlib does: a directory is made while it is imported, and nothing of it is left on the host."""
    python = environment(tmp_path / "env")
    (packages_of(python) / "plots.py").write_text(
        "import os\nPLACE = os.environ['MPLCONFIGDIR']\nMODE = os.stat(PLACE).st_mode & 0o777\n"
        "open(os.path.join(PLACE, 'fonts.json'), 'w').close()\n"
    )
    with Sandbox(config=ProcessConfig(python_path=python, preload=["plots"])) as sandbox:
        said = sandbox.run("import os, plots; print(plots.PLACE, oct(plots.MODE), os.environ.get('MPLCONFIGDIR'))")
        place, mode, now = said.stdout.split()
        assert (mode, now) == ("0o700", "None")
        assert not os.path.exists(place)


def test_ordinary_programs_do_not_complain() -> None:
    with Sandbox() as sandbox:
        said = sandbox.sh(
            "cd && touch .profile && mkdir -p .cache/x && git init -q r && cd r && git commit -qm m --allow-empty"
        )
        assert (said.exit_code, said.stderr) == (0, "")
        if os.path.exists("/etc/fonts/fonts.conf") and os.path.exists("/usr/bin/fc-list"):
            assert sandbox.sh("fc-list >/dev/null").stderr == ""
