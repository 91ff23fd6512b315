"""The build hook decides which wheels bring compiled modules. Hatchling itself is not needed for that."""

from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
INTERFACE = "hatchling.builders.hooks.plugin.interface"
SCRIPT_ALONE = {"bin/warmcell": "warmcell"}


@pytest.fixture
def hook_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("WARMCELL_NO_PRECOMPILE", "WARMCELL_NO_PRECOMPILE_PYTHON", "WARMCELL_PURE"):
        monkeypatch.delenv(name, raising=False)
    interface = ModuleType(INTERFACE)
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, INTERFACE, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hook(hook_module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    files = [tmp_path / "manifest.json", tmp_path / "toolbox.cwasm"]
    compiler = SimpleNamespace(target=lambda: "x86_64-unknown-linux-gnu", precompile=lambda *_: files)
    monkeypatch.setattr(hook_module, "precompiler", lambda: compiler)
    monkeypatch.setattr(hook_module, "scratch_directory", lambda _name: tmp_path)
    monkeypatch.setattr(hook_module, "write_bundle", lambda: tmp_path / "modules.bin")
    monkeypatch.setattr(hook_module, "compiled_front", lambda: None)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    made = hook_module.CompileModules()
    made.compiler = compiler
    made.app = SimpleNamespace(display_info=lambda _text: None)
    extras = {"wasm": ["wasmtime>=1"], "wasm-python": ["wasmtime>=1", "componentize-py==1"]}
    made.metadata = SimpleNamespace(core=SimpleNamespace(optional_dependencies=extras))
    return made


def build(hook: Any, version: str = "standard") -> dict[str, Any]:
    build_data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    hook.initialize(version, build_data)
    return build_data


def test_a_wheel_with_compiled_modules_is_for_one_platform(hook: Any, tmp_path: Path) -> None:
    made = build(hook)
    bindings = f"bindings.{sys.implementation.cache_tag}.bin"
    assert made["force_include"] == {
        str(tmp_path / "modules.bin"): "warmcell/modules.bin",
        str(tmp_path / bindings): f"warmcell/toolbox/ready_made/{bindings}",
        str(tmp_path / "manifest.json"): "warmcell/toolbox/ready_made/manifest.json",
        str(tmp_path / "toolbox.cwasm"): "warmcell/toolbox/ready_made/toolbox.cwasm",
    }
    assert made["pure_python"] is False
    assert made["tag"].startswith("py3-none-") and made["tag"] != "py3-none-any"
    assert hook.dependencies() == ["wasmtime>=1", "componentize-py==1"]


def test_on_request_it_is_pure_and_needs_nothing(hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMCELL_NO_PRECOMPILE", "1")
    bundle = {str(tmp_path / "modules.bin"): "warmcell/modules.bin"}
    assert build(hook) == {"force_include": bundle, "pure_python": True, "shared_scripts": SCRIPT_ALONE}
    assert hook.dependencies() == []


def test_an_editable_install_compiles_when_it_is_used(hook: Any) -> None:
    assert build(hook, "editable") == {"force_include": {}, "pure_python": True, "shared_scripts": SCRIPT_ALONE}


def test_without_wasmtime_or_a_target_it_is_pure(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hook.compiler.target = lambda: None
    assert build(hook)["pure_python"] is True and hook.dependencies() == []
    hook.compiler.target = lambda: "x86_64-unknown-linux-gnu"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert build(hook)["pure_python"] is True


def is_python_compiled(hook: Any) -> bool:
    wanted: list[bool] = []
    hook.compiler.precompile = lambda _directory, with_python, _report: wanted.append(with_python) or []
    build(hook)
    assert ("componentize-py==1" in hook.dependencies()) == wanted[0]
    return wanted[0]


def test_the_interpreter_is_in_it_unless_somebody_or_the_platform_says_no(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_python_compiled(hook)
    monkeypatch.setenv("WARMCELL_NO_PRECOMPILE_PYTHON", "1")
    assert not is_python_compiled(hook)
    monkeypatch.delenv("WARMCELL_NO_PRECOMPILE_PYTHON")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))  # musl, for which its builder has no wheels
    assert not is_python_compiled(hook)


def test_with_a_compiler_the_command_has_a_program_in_front_of_it(
    hook: Any, hook_module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which makes it a wheel for one platform, whatever else it brings."""
    front = tmp_path / "warmcell"
    monkeypatch.setattr(hook_module, "compiled_front", lambda: front)
    monkeypatch.setenv("WARMCELL_NO_PRECOMPILE", "1")
    made = build(hook)
    assert made["shared_scripts"] == {"bin/warmcell": "warmcell-python", str(front): "warmcell"}
    assert made["pure_python"] is False and made["tag"] != "py3-none-any"
    assert build(hook, "editable")["shared_scripts"] == SCRIPT_ALONE
    monkeypatch.setenv("WARMCELL_PURE", "1")
    assert build(hook) | {"force_include": {}} == {
        "force_include": {},
        "pure_python": True,
        "shared_scripts": SCRIPT_ALONE,
    }
    assert hook.dependencies() == []
