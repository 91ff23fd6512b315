"""Languages by name, alias and suffix, ours and others'."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.core.types import Language
from warmcell.languages import registry
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import ProgramSpec
from warmcell.languages.registry import (
    all_rows,
    available_languages,
    canonical,
    find_language,
    language_names,
    language_of_file,
    language_runtime,
    language_version,
    why_missing,
)
from warmcell.languages.row import LanguageRow, LanguageRuntime
from warmcell.languages.table import ROWS

DEFAULT = ProcessConfig()
ALIASES = {
    "python": "py",
    "javascript": "js node nodejs",
    "typescript": "ts",
    "command": "bash sh shell",
    "rust": "rs",
    "cpp": "c++",
    "go": "golang",
}
DESIGNED = "python javascript typescript rust command wasm c cpp go java ruby php perl lua r sql"


class Fortran:
    """What a third party would write."""

    name = "fortran"
    aliases = ("F90",)
    suffixes = (".f90",)

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        return ProgramSpec(("/usr/bin/fortran", "{code}/main.f90"), {"main.f90": code.encode()}, "main.f90")


AWK = LanguageRow(
    "awk", suffixes=(".awk",), programs=("awk",), main_file="main.awk", start=("{program}", "-f", "{code}/main.awk")
)


class NotALanguage:
    pass


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    found: list[EntryPoint] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == registry.GROUP else [])
    _forget_installed()
    yield found
    _forget_installed()


def _forget_installed() -> None:
    for remembered in (registry._entries, registry._installed_rows, registry._runtime):
        remembered.cache_clear()


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group="warmcell.languages")


# --- the rows -----------------------------------------------------------------------------------------------------


def test_no_name_and_no_suffix_is_given_twice() -> None:
    names = [name for row in ROWS for name in (row.name, *row.aliases)]
    suffixes = [suffix for row in ROWS for suffix in row.suffixes]
    for words in (names, suffixes):
        assert len(words) == len(set(words)) and all(word == word.lower() for word in words)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_says_all_that_is_needed(row: LanguageRow) -> None:
    assert row.remedy and row.suffixes
    if row.backend == "process":
        assert bool(row.runtime) != bool(row.programs and row.main_file and row.start)
        assert not row.build or row.is_compiled


def test_every_member_of_the_enumeration_has_a_row() -> None:
    assert set(Language) <= {row.name for row in ROWS}


@pytest.mark.parametrize(("name", "aliases"), ALIASES.items())
def test_the_usual_short_names_work_in_any_case(name: str, aliases: str) -> None:
    for alias in (name, *aliases.split()):
        assert canonical(alias) == canonical(alias.upper()) == canonical(alias.title()) == name


def test_every_designed_language_is_there() -> None:
    assert {row.name for row in ROWS} == set(DESIGNED.split())


@pytest.mark.parametrize("row", [row for row in ROWS if row.backend == "process"], ids=lambda row: row.name)
def test_every_process_language_has_a_runtime(row: LanguageRow) -> None:
    runtime = language_runtime(row.name)
    assert isinstance(runtime, LanguageRuntime) and runtime.name == row.name
    assert all(language_runtime(alias) is runtime for alias in row.aliases)


@pytest.mark.parametrize("name", ["cobol", "", "../../bin/sh", " python"])
def test_unknown_languages_are_refused(name: str, entries: list[EntryPoint]) -> None:
    with pytest.raises(InvalidRequest, match="language") as caught:
        find_language(name)
    assert caught.value.hint and "python" in caught.value.hint


def test_wasm_is_for_its_own_backend() -> None:
    with pytest.raises(InvalidRequest, match="WasmBackend"):
        language_runtime("wasm")


@pytest.mark.parametrize("name", [42, None, ["python"]])
def test_wrong_types_are_refused(name: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be text"):
        language_runtime(name)


def test_only_what_this_host_has_is_offered(monkeypatch: pytest.MonkeyPatch, entries: list[EntryPoint]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "rust" not in available_languages(DEFAULT)
    missing = why_missing("rust", DEFAULT)
    assert isinstance(missing, BackendUnavailable) and missing.hint == find_language("rust").remedy
    assert {Language.PYTHON, Language.COMMAND} <= set(available_languages(DEFAULT))
    assert "wasm" not in available_languages(DEFAULT)


def test_versions_are_one_line() -> None:
    assert language_version("python", DEFAULT) == f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    assert "\n" not in language_version("command", DEFAULT)


def test_our_names_do_not_load_the_metadata_of_packages() -> None:
    code = (
        "import sys; from warmcell.languages.registry import canonical, language_of_file; "
        "canonical('JS'); language_of_file('x.rs'); print('importlib.metadata' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"], capture_output=True, text=True
    )
    assert ended.stdout == "False\n", ended.stderr


# --- of other packages ----------------------------------------------------------------------------------------------


def test_a_language_of_another_package_is_as_good_as_ours(entries: list[EntryPoint]) -> None:
    entries.append(entry("fortran", f"{__name__}:Fortran"))
    assert language_names()[-1] == "fortran" and all_rows()[-1].suffixes == (".f90",)
    assert canonical("FORTRAN") == canonical("f90") == "fortran"
    assert language_of_file("x.F90") == find_language("fortran")
    assert language_runtime("f90").prepare("end", DEFAULT).argv[0] == "/usr/bin/fortran"
    assert "fortran" in available_languages(DEFAULT)
    assert language_version("fortran", DEFAULT) == ""


def test_a_row_is_enough(entries: list[EntryPoint]) -> None:
    entries.append(entry("awk", f"{__name__}:AWK"))
    program = language_runtime("awk").prepare("BEGIN { print 42 }", DEFAULT)
    assert program.argv[1:] == ("-f", "{code}/main.awk") and program.argv[0].endswith("/awk")
    assert language_of_file("a.awk") == find_language("AWK")


def test_ours_cannot_be_replaced(entries: list[EntryPoint]) -> None:
    entries += [entry(name, f"{__name__}:Fortran") for name in ("python", "Python", "js")]
    assert language_runtime("python").name == "python" and language_runtime("js").name == "javascript"
    assert language_names() == tuple(row.name for row in ROWS)


@pytest.mark.parametrize("value", ["no_such_module_here:Thing", f"{__name__}:Missing", f"{__name__}:NotALanguage"])
def test_broken_entries_are_our_error_not_theirs(value: str, entries: list[EntryPoint]) -> None:
    entries.append(entry("broken", value))
    with pytest.raises(BackendUnavailable, match="broken"):
        language_runtime("broken")
    assert "broken" in language_names() and "broken" not in available_languages(DEFAULT)


def test_every_language_of_ours_is_a_member() -> None:
    assert {row.name for row in ROWS} == set(Language)
    assert all(canonical(alias) is canonical(row.name) for row in ROWS for alias in row.aliases)
