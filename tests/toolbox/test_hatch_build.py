"""The build hooks decide what the two wheels contain. These tests do not need hatchling."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLBOX = ROOT / "packages/toolbox"
INTERFACE = "hatchling.builders.hooks.plugin.interface"
SCRIPT_ALONE = {"bin/warmcell": "warmcell"}


def load_hook(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("WARMCELL_PRECOMPILE", "WARMCELL_NO_PRECOMPILE_PYTHON", "WARMCELL_PURE"):
        monkeypatch.delenv(name, raising=False)
    interface = ModuleType(INTERFACE)
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, INTERFACE, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", path / "hatch_build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(hook: Any, version: str = "standard") -> dict[str, Any]:
    build_data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    hook.app = SimpleNamespace(display_info=lambda _text: None, display_warning=lambda _text: None)
    hook.initialize(version, build_data)
    if hasattr(hook, "finalize"):
        hook.finalize(version, build_data, "made.whl")
    return build_data


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook of warmcell, on a host without a C compiler."""
    module = load_hook(ROOT, monkeypatch)
    monkeypatch.setattr(module, "build_front", lambda: None)
    return module


def test_the_wheel_has_a_bundle_a_manual_page_and_completions(command: Any) -> None:
    made = build(command.BuildCommand())
    assert list(made["force_include"].values()) == [f"warmcell/modules.{sys.implementation.cache_tag}.bin"]
    assert sorted(made["shared_data"].values()) == sorted(command.DOCUMENTS.values())
    assert made["shared_scripts"] == SCRIPT_ALONE and made["pure_python"] is True
    assert not any(Path(path).parent.exists() for path in made["force_include"])


def test_two_builds_give_the_same_files(command: Any, tmp_path: Path) -> None:
    """Whatever the hash seed of the interpreter that builds."""
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        command.make_documents(directory)
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}


def test_with_a_compiler_the_command_has_a_program_in_front_of_it(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That makes it a wheel for one processor, with any C library."""
    front = tmp_path / "warmcell"
    monkeypatch.setattr(command, "build_front", lambda: front)
    made = build(command.BuildCommand())
    assert made["shared_scripts"] == {"bin/warmcell": "warmcell-python", str(front): "warmcell"}
    machine = platform.machine()
    assert made["pure_python"] is False and made["tag"].startswith(f"py3-none-manylinux_2_17_{machine}.")
    assert build(command.BuildCommand(), "editable")["shared_scripts"] == SCRIPT_ALONE
    monkeypatch.setenv("WARMCELL_PURE", "1")
    pure = build(command.BuildCommand())
    assert pure["shared_scripts"] == SCRIPT_ALONE and pure["pure_python"] is True


@pytest.fixture
def toolbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook of warmcell-toolbox, with a compiler that makes two files."""
    module = load_hook(TOOLBOX, monkeypatch)
    files = [tmp_path / "manifest.json", tmp_path / "toolbox.cwasm"]
    compiler = SimpleNamespace(target=lambda: "x86_64-unknown-linux-gnu", precompile=lambda *_: [*files])
    monkeypatch.setattr(module, "precompiler", lambda: compiler)
    monkeypatch.setattr(module, "scratch_directory", lambda _name: tmp_path)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    module.compiler = compiler
    return module


def test_modules_are_compiled_on_request_only(toolbox: Any) -> None:
    made = build(toolbox.AddModules())
    names = {f"warmcell_toolbox/{name}.wasm" for name in ("git", "node", "toolbox")}
    assert set(made["force_include"].values()) == names and made["pure_python"] is True
    assert toolbox.AddModules().dependencies() == []


def test_a_wheel_with_compiled_modules_is_for_one_processor(toolbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMCELL_PRECOMPILE", "1")
    made = build(toolbox.AddModules())
    bindings = f"bindings.{sys.implementation.cache_tag}.bin"
    compiled = {name for name in made["force_include"].values() if "ready_made" in name}
    assert compiled == {f"warmcell_toolbox/ready_made/{n}" for n in ("manifest.json", "toolbox.cwasm", bindings)}
    assert made["pure_python"] is False and "manylinux" in made["tag"] and "musllinux" in made["tag"]
    needed = toolbox.AddModules().dependencies()
    assert [re.split("[<>=]", item)[0] for item in needed] == ["wasmtime", "componentize-py"]


@pytest.mark.parametrize("lacks", ["wasmtime", "target", "checkout"])
def test_what_cannot_be_compiled_is_left_out(toolbox: Any, lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMCELL_PRECOMPILE", "1")
    if lacks == "wasmtime":
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    elif lacks == "target":
        toolbox.compiler.target = lambda: None
    else:
        monkeypatch.setattr(toolbox, "MODULES", Path("/nonexistent"))
    assert build(toolbox.AddModules())["pure_python"] is True


@pytest.mark.parametrize(("variable", "libc"), [("1", "glibc"), ("0", "")])
def test_the_interpreter_can_be_left_out(
    toolbox: Any, variable: str, libc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On request, and with musl, for which its builder has no wheels."""
    monkeypatch.setenv("WARMCELL_PRECOMPILE", "1")
    monkeypatch.setenv("WARMCELL_NO_PRECOMPILE_PYTHON", variable)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    wanted: list[bool] = []
    toolbox.compiler.precompile = lambda _directory, with_python, _report: wanted.append(with_python) or []
    build(toolbox.AddModules())
    assert wanted == [False] and "componentize" not in "".join(toolbox.AddModules().dependencies())


def test_both_packages_have_one_version() -> None:
    ours, theirs = (tomllib.loads((path / "pyproject.toml").read_text())["project"] for path in (ROOT, TOOLBOX))
    assert ours["version"] == theirs["version"]
    assert f"warmcell-toolbox=={ours['version']}" in ours["optional-dependencies"]["wasm"]


def test_everything_bundled_is_listed_and_has_its_license() -> None:
    subprocess.run([sys.executable, ROOT / "scripts/sbom", "--check"], check=True)
    listed = json.loads((TOOLBOX / "sbom.cdx.json").read_text())["components"]
    texts = {path.stem for path in (TOOLBOX / "LICENSES").iterdir()}
    assert {component["name"].replace("/", "_") for component in listed} <= texts
