"""The Python component's cache: private, built once, verified by its MAC, with clear errors."""

from __future__ import annotations

import fcntl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, until

from warmcell.backends.wasm import toolbox_runner
from warmcell.core.errors import BackendUnavailable
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.toolbox import python_component
from warmcell.toolbox.signed_directory import SignedDirectory


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "warmcell" / "components"


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A slow builder that writes the text "made"."""
    names: list[str] = []

    def build(name: str, kept: SignedDirectory, _run: Run) -> None:
        names.append(name)
        time.sleep(0.2)
        made = tmp_path / "made"
        made.write_bytes(b"made")
        with made.open("rb") as file:
            kept.write(name, file.fileno(), {})

    monkeypatch.setattr(python_component, "require_builder", lambda: None)
    monkeypatch.setattr(python_component, "_build", build)
    return names


def test_the_builder_is_used_where_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pip's build environment an isolated interpreter would not find the builder."""
    lent = tmp_path / "lent"
    (lent / "componentize_py-0.0.dist-info").mkdir(parents=True)
    (lent / "componentize_py-0.0.dist-info/METADATA").write_text("Name: componentize-py\nVersion: 0.0\n")
    (lent / "componentize_py.py").write_text("import sys\ndef script(): open(sys.argv[-1], 'w').write(sys.argv[1])\n")
    monkeypatch.syspath_prepend(str(lent))
    folder = tmp_path / "folder"
    folder.mkdir()
    assert python_component.build_component(folder).read_text() == "-q"


def test_missing_builder_names_the_remedy(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def missing(_name: str) -> str:
        raise python_component.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(python_component.importlib.metadata, "version", missing)
    with pytest.raises(python_component.ComponentUnavailable, match=r"pip install \"warmcell\[wasm-python\]\""):
        python_component.ensure_component()


def test_it_is_private_and_built_once(cache: Path, builds: list[str]) -> None:
    threads = [threading.Thread(target=python_component.ensure_component) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert cache.stat().st_mode & 0o777 == 0o700
    name = python_component.ensure_component(lambda text: pytest.fail(text))
    assert python_component.read_component(name) == b"made"


@pytest.mark.attack("S2-40")
def test_a_file_of_the_right_name_is_not_enough(cache: Path, builds: list[str]) -> None:
    name = python_component.ensure_component()
    (cache / f"{name}.signed").write_bytes(b'{"facts": {}, "mac": "00"}\nEVIL')
    assert python_component.read_component(name) == b"made"
    assert len(builds) == 2


def test_a_damaged_component_without_a_builder_is_a_typed_error(
    cache: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = python_component.ensure_component()
    (cache / f"{name}.signed").write_bytes(b'{"facts": {}, "mac": "00"}\nEVIL')

    def find_none() -> None:
        raise python_component.ComponentUnavailable("there is no builder")

    monkeypatch.setattr(python_component, "require_builder", find_none)
    with pytest.raises(BackendUnavailable, match="no builder"):
        toolbox_runner._python_source().read()


def test_a_failed_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(python_component, "require_builder", lambda: None)
    monkeypatch.setattr(python_component, "own_interpreter", lambda: "/bin/false")
    with pytest.raises(python_component.ComponentUnavailable, match="failed"):
        python_component.ensure_component()
    assert {item.name for item in cache.iterdir()} == {"secret", "build.lock"}


def test_a_cancelled_build_ends(monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> None:
    began = tmp_path / "began"
    builder = tmp_path / "builder"
    builder.write_text(f"#!/bin/sh\ntouch {began}\nexec sleep {10 * PATIENCE}\n")
    builder.chmod(0o700)
    monkeypatch.setattr(python_component, "require_builder", lambda: None)
    monkeypatch.setattr(python_component, "own_interpreter", lambda: str(builder))
    run = Run()
    with ThreadPoolExecutor() as threads:
        build = threads.submit(python_component.ensure_component, None, run)
        until(began.exists)
        run.cancel()
        with pytest.raises(RunCancelled):
            build.result(PATIENCE)
    assert {item.name for item in cache.iterdir()} == {"secret", "build.lock"}


def test_cancelling_ends_the_wait_for_another_build(cache: Path, builds: list[str]) -> None:
    python_component.ensure_component()
    python_component.components().forget(python_component.component_name())
    run, reports = Run(), list[str]()
    with ThreadPoolExecutor() as threads, open(cache / "build.lock", "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        build = threads.submit(python_component.ensure_component, reports.append, run)
        until(lambda: reports)
        run.cancel()
        with pytest.raises(RunCancelled):
            build.result(PATIENCE)
    assert len(builds) == 1


def test_an_unusable_cache_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(python_component.ComponentUnavailable, match="XDG_CACHE_HOME"):
        python_component.ensure_component()
