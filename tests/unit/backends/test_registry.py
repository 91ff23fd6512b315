"""Backends by name; other packages can add, never replace."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from warmcell.backends import registry
from warmcell.backends.fake import FakeBackend
from warmcell.core.errors import BackendUnavailable, InvalidRequest


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Entry points that are 'installed' for one test."""
    installed: dict[str, str] = {}

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        found = [EntryPoint(key, value, group) for key, value in installed.items()]
        return [entry for entry in found if name is None or entry.name == name]

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    return installed


def test_the_fake_by_name_with_options(plugins: dict[str, str]) -> None:
    backend = registry.get_backend("fake", name="mine")
    assert isinstance(backend, FakeBackend)
    assert backend.name == "mine"


def test_a_plugin_joins_by_entry_point(plugins: dict[str, str]) -> None:
    plugins["mine"] = "warmcell.backends.fake:FakeBackend"
    assert isinstance(registry.get_backend("mine"), FakeBackend)
    assert "mine" in registry.backend_names()


def test_a_plugin_cannot_replace_ours(plugins: dict[str, str]) -> None:
    plugins["fake"] = "builtins:dict"
    assert isinstance(registry.get_backend("fake"), FakeBackend)
    assert registry.backend_names() == ("process", "wasm", "fake", "ray")


def test_unknown_names_are_refused_with_the_known_ones(plugins: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="process"):
        registry.get_backend("dockre")


@pytest.mark.parametrize("name", [None, 5, ["process"]])
def test_names_are_text(name: Any) -> None:
    with pytest.raises(InvalidRequest):
        registry.get_backend(name)


@pytest.mark.parametrize("target", ["no_such_module_here:X", "warmcell.backends.fake:Nothing"])
def test_a_broken_plugin_says_which(plugins: dict[str, str], target: str) -> None:
    plugins["broken"] = target
    with pytest.raises(BackendUnavailable, match="broken"):
        registry.get_backend("broken")


def test_a_plugin_that_is_not_a_backend_is_refused(plugins: dict[str, str]) -> None:
    plugins["odd"] = "builtins:dict"
    with pytest.raises(BackendUnavailable, match="not a backend"):
        registry.get_backend("odd")


def test_options_that_a_factory_does_not_take_are_reported(plugins: dict[str, str]) -> None:
    with pytest.raises(BackendUnavailable, match=r"'fake' does not accept policy="):
        registry.get_backend("fake", policy=None)


def test_our_names_do_not_load_the_metadata_of_packages() -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from warmcell.backends.registry import get_backend; "
        "get_backend('process').close(); print('importlib.metadata' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert ended.stdout == "False\n", ended.stderr
