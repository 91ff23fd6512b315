"""The modules are found in a checkout and in the package warmcell-toolbox; without both the error names the extra."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmcell.core.errors import BackendUnavailable
from warmcell.toolbox import loader, runtime


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    caches = (runtime.modules_directory, runtime.ready_made_directory, loader.find_artefact)
    for cached in caches:
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()


def test_a_checkout_uses_its_own_modules() -> None:
    assert runtime.modules_directory() == os.path.dirname(os.path.realpath(loader.__file__))
    assert runtime.has_modules()


def test_an_installation_uses_those_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site/warmcell_toolbox"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "toolbox.wasm").touch()
    monkeypatch.setattr(runtime, "_OWN", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert runtime.modules_directory() == str(package) and runtime.has_modules()
    assert runtime.ready_made_directory() == str(package / "ready_made")
    assert loader.find_artefact("node").path == str(package / "node.wasm")


def test_without_modules_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_OWN", str(tmp_path))
    monkeypatch.setattr(runtime, "PACKAGE", "no_such_package")
    assert not runtime.has_modules()
    with pytest.raises(BackendUnavailable, match="'warmcell-toolbox' is not installed") as raised:
        loader.find_artefact("toolbox").read()
    assert raised.value.hint == "pip install 'warmcell[wasm]'"
