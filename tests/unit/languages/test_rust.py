"""Rust guests: the compiler that is found behind rustup's proxy, the build step and its cache key."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.helpers import require
from tests.unit.languages.running import run_program

from warmcell.core.errors import BackendUnavailable
from warmcell.enforcers.host import find_program
from warmcell.languages import rust
from warmcell.languages.config import ProcessConfig
from warmcell.languages.rust import Compiler, RustRuntime, cache_key, find_compiler

DEFAULT = ProcessConfig()
COMPILER = Compiler("/toolchain/bin/rustc", "rustc 1.90.0", ("/toolchain",))


@pytest.fixture
def rustc() -> None:
    require(find_program("rustc") and find_program("cc"), "there is no rustc with a linker here")


def run(code: str, tmp_path: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_program(RustRuntime().prepare(code, DEFAULT), tmp_path, stdin=stdin)


def test_program_builds_into_the_output_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rust, "find_compiler", lambda _config: COMPILER)
    program = RustRuntime().prepare("fn main() {}", DEFAULT)
    assert program.argv == ("{out}/main",)
    assert dict(program.files) == {"main.rs": b"fn main() {}"}
    assert program.build is not None and program.build.artefact == "main"
    assert program.build.argv[0] == COMPILER.path and "--edition=2021" in program.build.argv
    assert program.build.argv[-3:] == ("-o", "{out}/main", "{code}/main.rs")
    assert (program.worker, program.runtime_paths) == (None, ("/toolchain",))


def test_cache_key_changes_with_everything_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {cache_key("a", COMPILER), cache_key("b", COMPILER)}
    keys.add(cache_key("a", Compiler(COMPILER.path, "rustc 1.91.0", ())))
    keys.add(cache_key("a", Compiler("/other/rustc", COMPILER.version, ())))
    monkeypatch.setattr(rust, "FLAGS", ("-Copt-level=2",))
    keys.add(cache_key("a", COMPILER))
    assert len(keys) == 5 and all(len(key) == 64 for key in keys)


def test_missing_compiler_or_linker_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rust, "find_program", lambda _name: None)
    with pytest.raises(BackendUnavailable, match="rustc") as caught:
        find_compiler(DEFAULT)
    assert caught.value.hint and "rustup" in caught.value.hint and "gcc" in caught.value.hint
    monkeypatch.setattr(rust, "find_program", lambda name: "/usr/bin/rustc" if name == "rustc" else None)
    with pytest.raises(BackendUnavailable, match="linker"):
        find_compiler(DEFAULT)
    with pytest.raises(BackendUnavailable, match="rustc_path"):
        find_compiler(ProcessConfig(rustc_path="/nowhere/rustc"))


def test_a_proxy_is_seen_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rust, "find_program", lambda _name: "/usr/bin/cc")
    toolchain = tmp_path / "toolchain"
    (toolchain / "bin").mkdir(parents=True)
    for path, text in ((toolchain / "bin" / "rustc", "rustc 1.2.3"), (tmp_path / "proxy", str(toolchain))):
        path.write_text(f"#!/bin/sh\necho {text}\n")
        path.chmod(0o755)
    found = find_compiler(ProcessConfig(rustc_path=tmp_path / "proxy"))
    assert found == Compiler(str(toolchain / "bin" / "rustc"), "rustc 1.2.3", (str(toolchain),))


@pytest.mark.usefixtures("rustc")
def test_the_real_compiler_is_not_the_proxy() -> None:
    found = find_compiler(DEFAULT)
    assert found.version.startswith("rustc 1.")
    assert Path(found.path).parent.parent.joinpath("lib").is_dir()


@pytest.mark.usefixtures("rustc")
def test_runs_with_stdin_and_exit_status(tmp_path: Path) -> None:
    code = """
use std::io::Read;
fn main() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let answer = async { 1 };  // edition 2018 or later
    drop(answer);
    println!("{}", text.to_uppercase());
    std::process::exit(42);
}
"""
    done = run(code, tmp_path, stdin="hello")
    assert (done.stdout, done.returncode) == ("HELLO\n", 42)


@pytest.mark.usefixtures("rustc")
def test_compile_errors_are_the_compilers_words_without_colour(tmp_path: Path) -> None:
    done = run('fn main() { let x: i32 = "no"; }', tmp_path)
    assert done.returncode == 1
    assert "error[E0308]" in done.stderr and "main.rs:1" in done.stderr and "\x1b" not in done.stderr
