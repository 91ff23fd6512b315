"""Every language inside a real cage: the runtime paths that a program names are all that it needs of the host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.core.errors import BackendUnavailable, EnforcerUnavailable
from warmcell.core.types import Language
from warmcell.enforcers.bubblewrap import BubblewrapEnforcer
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import ProgramSpec, place
from warmcell.languages.registry import language_runtime
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy


@pytest.fixture(scope="module")
def cage() -> BubblewrapEnforcer:
    try:
        BubblewrapEnforcer().probe()
    except EnforcerUnavailable as error:
        require(False, str(error))
    return BubblewrapEnforcer()


def prepare(language: Language, code: str, config: ProcessConfig | None = None) -> ProgramSpec:
    try:
        return language_runtime(language).prepare(code, config or ProcessConfig())
    except BackendUnavailable as error:
        require(False, str(error))
        raise


def run(cage: BubblewrapEnforcer, program: ProgramSpec, directory: Path) -> subprocess.CompletedProcess[str]:
    for name in ("code", "out"):
        (directory / name).mkdir()
    for name, content in program.files.items():
        (directory / "code" / name).write_bytes(content)
    policy = SandboxPolicy(
        allowed_paths=(
            AllowedPath(str(directory / "code"), guest_path="/code"),
            AllowedPath(str(directory / "out"), AccessMode.READ_WRITE, "/out"),
            *(AllowedPath(path) for path in program.runtime_paths),
        ),
        allow_process_spawn=True,
    )
    if program.build:
        built = start(cage, [place(item, "/code", "/out") for item in program.build.argv], policy)
        if built.returncode:
            return built
    return start(cage, program.argv_in("/code"), policy)


def start(cage: BubblewrapEnforcer, argv: list[str], policy: SandboxPolicy) -> subprocess.CompletedProcess[str]:
    command = cage.wrap_command(argv[0], argv[1:], policy)
    keywords = cage.configure_command(command, policy)
    return subprocess.run(command.argv, input="in", capture_output=True, text=True, timeout=60, check=False, **keywords)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (Language.PYTHON, "import ssl, sqlite3, ctypes, os; print(input() + os.getcwd()); exit(7)"),
        (Language.JAVASCRIPT, "console.log(require('fs').readFileSync(0, 'utf8') + process.cwd()); process.exit(7)"),
        (
            Language.TYPESCRIPT,
            "import fs from 'node:fs'; enum E { A = 7 }\n"
            "console.log(fs.readFileSync(0, 'utf8') + process.cwd()); process.exit(E.A as number)",
        ),
        (
            Language.RUST,
            "fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap();"
            ' println!("{}{}", s, std::env::current_dir().unwrap().display()); std::process::exit(7) }',
        ),
        (Language.COMMAND, "read line; echo $line$(pwd); exit 7"),
    ],
)
def test_it_runs(language: Language, code: str, cage: BubblewrapEnforcer, tmp_path: Path) -> None:
    done = run(cage, prepare(language, code), tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("in/work\n", "", 7)


def test_a_virtual_environment_runs(cage: BubblewrapEnforcer, tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "env", symlinks=True)
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    (site / "only_here.py").write_text("value = 5")
    config = ProcessConfig(python_path=tmp_path / "env" / "bin" / "python")
    done = run(cage, prepare(Language.PYTHON, "import only_here; print(only_here.value)", config), tmp_path)
    assert done.stdout == "5\n", done.stderr


@pytest.mark.attack("FS-01")
def test_the_compiler_cannot_read_the_hosts_files_either(cage: BubblewrapEnforcer, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("canary-51d2")
    done = run(cage, prepare(Language.RUST, f'fn main() {{ println!("{{}}", include_str!("{canary}")) }}'), tmp_path)
    assert done.returncode == 1 and "couldn't read" in done.stderr and "canary-51d2" not in done.stdout + done.stderr
