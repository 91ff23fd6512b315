"""Languages by name, alias and suffix: our own, and those of other packages by entry point."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, lru_cache

from warmcell.core.errors import BackendUnavailable, InvalidRequest, SandboxError
from warmcell.core.language import Language
from warmcell.core.records import replace
from warmcell.languages.config import ProcessConfig
from warmcell.languages.row import LanguageRow
from warmcell.languages.table import ROWS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import EntryPoint
    from typing import Any

    from warmcell.languages.runtime import LanguageRuntime

GROUP = "warmcell.languages"

_BY_NAME = {name: row for row in ROWS for name in (row.name, *row.aliases)}
_MEMBERS = {name: Language(row.name) for name, row in _BY_NAME.items()}
_BY_SUFFIX = {suffix: row for row in ROWS for suffix in row.suffixes}


def find_language(name: str) -> LanguageRow:
    """The row for a name or an alias, in any case. Ours first: an installed package adds languages, never replaces one.

    Other packages are searched only for names that are not ours; that takes longer than most programs run.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"must be text, not {type(name).__name__}", field="language")
    row = lookup_language(name)
    if row is None:
        known = ", ".join(language_names())
        raise InvalidRequest(f"unknown language {name[:40]!r}", field="language", hint=f"one of {known}")
    return row


def lookup_language(name: str) -> LanguageRow | None:
    """The language of that name, or None: a backend may have languages that are not registered here."""
    known = name.lower()
    return find_built_in(name) or next((row for row in _installed_rows() if known in (row.name, *row.aliases)), None)


def find_built_in(name: str) -> LanguageRow | None:
    return _BY_NAME.get(name.lower())


def canonical(name: str) -> Language | str:
    """The language's own name for a name or an alias: a `Language` if it is one of ours."""
    if isinstance(name, str) and name in _MEMBERS:
        return _MEMBERS[name]
    own = find_language(name).name
    return _MEMBERS.get(own, own)


def language_of_file(path: str) -> LanguageRow | None:
    """The language that a file's suffix names."""
    suffix = os.path.splitext(path)[1].lower()
    if not suffix or suffix in _BY_SUFFIX:
        return _BY_SUFFIX.get(suffix)
    return next((row for row in _installed_rows() if suffix in row.suffixes), None)


def language_names() -> tuple[str, ...]:
    """Every language's own name, ours first, whether or not this host can run it."""
    return tuple(row.name for row in all_rows())


def all_rows() -> tuple[LanguageRow, ...]:
    return (*ROWS, *_installed_rows())


def language_runtime(language: str) -> LanguageRuntime:
    """The runtime for a language; one object per language serves every run."""
    row = find_language(language)
    if row.backend != "process":
        raise InvalidRequest(f"the process backend does not run {row.name}", field="language", hint=row.remedy)
    return _runtime(row.name)


def available_languages(config: ProcessConfig) -> tuple[Language | str, ...]:
    """The languages whose toolchains this host has, for the process backend."""
    rows = (row for row in all_rows() if row.backend == "process")
    return tuple(canonical(row.name) for row in rows if why_missing(row.name, config) is None)


def why_missing(language: str, config: ProcessConfig) -> SandboxError | None:
    """The error that prevents running the language here, or None. Prepares a program without running it."""
    try:
        find_toolchain(language, config)
    except SandboxError as error:
        return error
    return None


def find_toolchain(language: str, config: ProcessConfig) -> str:
    """Where the language's toolchain was found, or the error that says what is missing. Runs and compiles nothing."""
    runtime = language_runtime(language)
    check = getattr(runtime, "check", None)
    if callable(check):
        return str(check(config) or "")
    program = runtime.prepare("0", config)
    return (program.build or program).argv[0]


def language_version(language: str, config: ProcessConfig) -> str:
    """The toolchain's version line; empty if the runtime has none."""
    runtime = language_runtime(language)
    query_version = getattr(runtime, "version", None)
    return str(query_version(config)).strip().partition("\n")[0] if callable(query_version) else ""


class LanguageVersions(Mapping[str, str]):
    """The version line of each of these languages. `ask` queries its toolchain, at the first look-up, once."""

    def __init__(self, languages: tuple[str, ...], ask: Callable[[str], str]) -> None:
        self._languages, self._ask = languages, ask
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._languages:
            raise KeyError(name)
        if name not in self._known:
            self._known[name] = self._ask(str(name))
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._languages)

    def __len__(self) -> int:
        return len(self._languages)


@lru_cache(maxsize=64)
def _runtime(name: str) -> LanguageRuntime:
    row = find_built_in(name)
    if row is None:
        return _load(next(entry for entry in _entries() if entry.name.lower() == name))[1]
    if not row.runtime:
        return _plain(row)
    module, _, attribute = row.runtime.partition(":")
    # Not importlib, which imports `warnings`.
    runtime: LanguageRuntime = getattr(__import__(module, fromlist=("",)), attribute)()
    return runtime


def _plain(row: LanguageRow) -> LanguageRuntime:
    from warmcell.languages.plain import PlainRuntime

    return PlainRuntime(row)


@cache
def _entries() -> tuple[EntryPoint, ...]:
    """Entry points of other packages, without those that have one of our names."""
    from importlib.metadata import entry_points

    return tuple(entry for entry in entry_points(group=GROUP) if find_built_in(entry.name) is None)


@cache
def _installed_rows() -> tuple[LanguageRow, ...]:
    """The rows of other packages; one that cannot be loaded is listed by its name."""
    return tuple(sorted(map(_row_of_entry, _entries()), key=lambda row: row.name))


def _row_of_entry(entry: EntryPoint) -> LanguageRow:
    try:
        return _load(entry)[0]
    except BackendUnavailable:
        return LanguageRow(entry.name.lower())


def _load(entry: EntryPoint) -> tuple[LanguageRow, LanguageRuntime]:
    from warmcell.languages.runtime import LanguageRuntime

    name = entry.name.lower()
    brought = _load_entry(entry)
    if isinstance(brought, LanguageRow):
        row = replace(brought, name=name, runtime="", backend="process")
        return row, _plain(row)
    runtime = brought() if callable(brought) else brought
    if not isinstance(runtime, LanguageRuntime):
        raise BackendUnavailable(
            f"{name!r} returned a {type(runtime).__name__}, which is not a language runtime",
            hint="implement warmcell.languages.row.LanguageRuntime (name, prepare), or give a LanguageRow",
        )
    words = [map(str, getattr(runtime, key, ())) for key in ("aliases", "suffixes")]
    aliases, suffixes = (tuple(word.lower() for word in each) for each in words)
    return LanguageRow(name, aliases, suffixes), runtime


def _load_entry(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise BackendUnavailable(
            f"language {entry.name!r} ({entry.value}) could not be imported: {error}", hint="reinstall its package"
        ) from error
