"""Languages by name, ours and others'."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.core.types import Language
from warmcell.languages import registry
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import Program
from warmcell.languages.registry import LanguageRuntime, language_names, language_runtime


class Ruby:
    """What a third party would write."""

    name = "ruby"

    def prepare(self, code: str, config: ProcessConfig) -> Program:
        return Program(("/usr/bin/ruby", "{code}/main.rb"), {"main.rb": code.encode()}, "main.rb")


class NotALanguage:
    pass


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    found: list[EntryPoint] = []

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry for entry in found if group == "warmcell.languages" and name in (None, entry.name)]

    registry._runtime.cache_clear()
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    return found


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group="warmcell.languages")


@pytest.mark.parametrize("language", [item for item in Language if item is not Language.WASM])
def test_every_process_language_has_a_runtime(language: Language) -> None:
    runtime = language_runtime(language)
    assert isinstance(runtime, LanguageRuntime) and runtime.name == language
    assert language_runtime(str(language)) is runtime


def test_third_party_language(entries: list[EntryPoint]) -> None:
    entries.append(entry("ruby", f"{__name__}:Ruby"))
    assert language_names()[-1] == "ruby"
    assert language_runtime("ruby").prepare("puts 1", ProcessConfig()).argv[0] == "/usr/bin/ruby"


def test_ours_cannot_be_replaced(entries: list[EntryPoint]) -> None:
    entries.append(entry("python", f"{__name__}:Ruby"))
    assert language_runtime("python").name == "python"
    assert language_names().count("python") == 1


@pytest.mark.parametrize("name", ["wasm", "cobol", "", "../../bin/sh", "Python"])
def test_unknown_languages_are_refused(name: str, entries: list[EntryPoint]) -> None:
    with pytest.raises(InvalidRequest, match="language") as caught:
        language_runtime(name)
    assert caught.value.hint and "python" in caught.value.hint


@pytest.mark.parametrize("name", [42, None, ["python"]])
def test_wrong_types_are_refused(name: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be text"):
        language_runtime(name)


@pytest.mark.parametrize("value", ["no_such_module_here:Thing", f"{__name__}:Missing", f"{__name__}:NotALanguage"])
def test_broken_entries_are_our_error_not_theirs(value: str, entries: list[EntryPoint]) -> None:
    entries.append(entry("broken", value))
    with pytest.raises(BackendUnavailable, match="broken"):
        language_runtime("broken")
