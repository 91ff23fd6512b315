"""Compiled modules of a wheel: used only if they were built for exactly this runtime."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.helpers import require

from warmcell.backends.wasm import module_loader, worker_handle
from warmcell.backends.wasm.module_loader import ModuleCache
from warmcell.backends.wasm.pool import WorkerPool
from warmcell.backends.wasm.supervisor import Supervisor
from warmcell.backends.wasm.toolbox_runner import ToolboxRunner
from warmcell.guest.wasm.protocol import RunLimits
from warmcell.toolbox import loader
from warmcell.toolbox.loader import find_artefact
from warmcell.toolbox.python_component import ComponentUnavailable
from warmcell.toolbox.signed_directory import SignedFile

ROOT = Path(__file__).resolve().parents[2]
DIGEST = f"own:{find_artefact('node').sha256}"
_LIMITS = RunLimits(60)


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def precompile() -> Iterator[Any]:
    """The script of the wheel build, limited to the smallest module."""
    before = list(sys.path)
    script: Any = load_script(ROOT / "modules" / "precompile.py")
    require(script.target() is not None, "wheels for this platform bring nothing compiled")
    script.MODULES = ("node",)
    yield script
    sys.path[:] = before


@pytest.fixture(scope="module")
def wheel_build(precompile: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the wheel build."""
    directory = tmp_path_factory.mktemp("ready_made")
    precompile.precompile(directory, False, lambda _text: None)
    return directory


@pytest.fixture
def installation(wheel_build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy at its place in an installation, for a user without a cache."""
    directory = tmp_path / "installation"
    shutil.copytree(wheel_build, directory)
    monkeypatch.setattr(loader, "ready_made_directory", lambda: directory)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    loader._modules.cache_clear()
    yield directory
    loader._modules.cache_clear()


def change_manifest(directory: Path, **fields: Any) -> None:
    path = directory / loader.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    loader._modules.cache_clear()


def is_found() -> bool:
    found = loader.open_shipped_module(DIGEST, "run")
    if found is not None:
        found.close()
    return found is not None


def test_an_interpreter_that_cannot_be_built_is_left_out_and_named(
    precompile: Any, wheel_build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ComponentUnavailable("there is no builder")

    monkeypatch.setattr(precompile.python_component, "require_builder", refuse)
    directory, told = tmp_path / "wheel", []
    shutil.copytree(wheel_build, directory)
    made = precompile.precompile(directory, True, told.append)
    assert [path.name for path in made] == ["manifest.json", "node.cwasm"]
    assert told[-1].startswith("python is left out") and told[-1].endswith("there is no builder")
    assert list(json.loads(made[0].read_text())["modules"]) == [DIGEST]


def calculate(cache: Path, limits: RunLimits = _LIMITS) -> str:
    """With workers of its own: those of the program may have the module already."""
    pool = WorkerPool()
    runner = ToolboxRunner(Supervisor(ModuleCache(cache), pool))
    try:
        return runner.run_command(["node", "-p", "6*7"], limits).stdout
    finally:
        runner.close()
        pool.close()


def test_the_first_command_of_a_new_user_compiles_nothing(
    installation: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warmcell")
    cache = tmp_path / "modules"
    assert calculate(cache) == "42\n"
    assert not cache.exists()
    assert "compiling" not in caplog.text


def test_workers_use_the_file_itself_and_nothing_is_copied(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise AssertionError("it was copied")

    monkeypatch.setattr(loader, "sealed_copy", refuse)
    monkeypatch.setattr(worker_handle, "ready_made_directory", lambda: str(installation))
    assert calculate(tmp_path / "modules") == "42\n"


def test_shipped_modules_take_precedence_over_cached_ones(installation: Path, tmp_path: Path) -> None:
    """As on an account with an older installation. Both files stay, even if a worker rejects one."""
    artefact = os.memfd_create("module")
    os.write(artefact, b"compiled here")
    cache = ModuleCache(tmp_path / "modules")
    cache.store("key", artefact, {})
    os.close(artefact)

    def open_shipped() -> SignedFile | None:
        return loader.open_shipped_module(DIGEST, "run")

    def find(way: Callable[[], SignedFile | None]) -> bool:
        compiled = cache.find("key", way)
        assert compiled is not None
        compiled.close()
        return compiled.is_shipped

    assert find(open_shipped)
    cache.forget("key")
    assert find(open_shipped)
    cache.forget("key")
    assert not find(lambda: None)
    cache.forget("key")
    assert cache.find("key") is None
    cache.close()


def test_a_worker_that_cannot_use_shipped_modules_gets_locally_compiled_ones(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Compiled once: the next process finds it in the cache."""
    caplog.set_level(logging.INFO, "warmcell")
    damaged = os.memfd_create("damaged")
    os.write(damaged, b"no machine code")
    whole = loader.open_shipped_module(DIGEST, "run")
    assert whole is not None
    whole.close()
    found = SignedFile(damaged, whole.facts, is_shipped=True)
    monkeypatch.setattr(module_loader, "open_shipped_module", lambda *_, **__: found.copy())
    for _ in range(2):
        assert calculate(tmp_path / "modules", RunLimits(120)) == "42\n"
    found.close()
    assert caplog.text.count("compiling") == 1


@pytest.mark.parametrize("mode", [0o600, 0o646, 0o664])
def test_a_file_with_unsuitable_permissions_is_copied(installation: Path, mode: int) -> None:
    path = installation / "node.cwasm"
    assert module_path() == str(path)
    path.chmod(mode)
    assert module_path().startswith("/memfd:")


def module_path() -> str:
    found = loader.open_shipped_module(DIGEST, "run")
    assert found is not None
    with contextlib.closing(found):
        return os.readlink(f"/proc/self/fd/{found.descriptor}")


def test_runs_that_count_fuel_need_other_code(installation: Path, tmp_path: Path) -> None:
    cache = tmp_path / "modules"
    assert calculate(cache, RunLimits(60, fuel=10**9)) == "42\n"
    assert [path for path in cache.iterdir() if path.suffix == ".signed"]


@pytest.mark.parametrize(
    "difference",
    [
        {"wasmtime": "0.0.0"},
        {"settings": "0" * 64},
        {"machine": "another"},
        {"features": ["a feature of tomorrow"]},
        {"modules": {}},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_modules_for_another_runtime_are_ignored(installation: Path, difference: dict[str, Any]) -> None:
    assert is_found() and loader.has_shipped_module(DIGEST)
    change_manifest(installation, **difference)
    assert not is_found() and not loader.has_shipped_module(DIGEST)


def test_a_pure_installation_has_no_compiled_modules(installation: Path) -> None:
    shutil.rmtree(installation)
    assert not is_found()


def test_another_entry_is_another_module(installation: Path) -> None:
    assert loader.open_shipped_module(DIGEST, "other") is None


def test_a_changed_module_is_not_run(installation: Path) -> None:
    path = installation / "node.cwasm"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not is_found()
    path.unlink()
    assert not is_found()


def test_the_content_is_compared_once_and_whenever_the_file_was_touched(
    installation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    digest = loader.content_digest
    monkeypatch.setattr(loader, "content_digest", lambda file: compared.append(file) or digest(file))
    path = installation / "node.cwasm"
    assert is_found() and is_found() and len(compared) == 1
    os.utime(path)
    assert is_found() and is_found() and len(compared) == 2
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"changed")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not is_found() and not is_found() and len(compared) == 4


def test_an_account_that_cannot_keep_notes_compares_every_time(
    installation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert is_found() and is_found()


def test_portable_code_uses_only_the_features_in_the_manifest(wheel_build: Path) -> None:
    """The compiler's flags and the kernel's names list the same features."""
    sys.path.insert(0, str(ROOT / "src" / "warmcell" / "guest"))
    try:
        from wasm.engine import PORTABLE_FLAGS
    finally:
        sys.path.pop(0)
    kernel_names = {"has_sse3": "pni", "has_sse41": "sse4_1", "has_sse42": "sse4_2"}
    for machine, flags in PORTABLE_FLAGS.items():
        named = {kernel_names.get(flag, flag.removeprefix("has_")) for flag in flags}
        assert named == set(loader.FEATURES[machine])
    manifest = json.loads((wheel_build / loader.MANIFEST).read_text())
    assert manifest["features"] == loader.FEATURES.get(platform.machine(), [])


def test_an_earlier_build_is_reused(wheel_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precompile = sys.modules["script_precompile"]
    monkeypatch.setattr(precompile, "compile_one", lambda *_: pytest.fail("it was compiled again"))
    files = precompile.precompile(wheel_build, False, lambda _text: None)
    assert sorted(path.name for path in files) == ["manifest.json", "node.cwasm"]
