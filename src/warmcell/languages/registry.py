"""Languages by name: our own, and those that other packages bring through the entry point group below."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.core.types import Language
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import Program

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "warmcell.languages"

#: Resolved before entry points: an installed package can add a language, never replace one of these.
BUILT_IN = {
    Language.PYTHON: "warmcell.languages.python:PythonRuntime",
    Language.JAVASCRIPT: "warmcell.languages.javascript:JavaScriptRuntime",
    Language.TYPESCRIPT: "warmcell.languages.javascript:TypeScriptRuntime",
    Language.RUST: "warmcell.languages.rust:RustRuntime",
    Language.COMMAND: "warmcell.languages.shell:ShellRuntime",
}


@runtime_checkable
class LanguageRuntime(Protocol):
    """Turns source text into a `Program`.

    `prepare` is called once per run, from any thread, before anything is started. It locates toolchains on the host
    (and may remember where they are) but never runs, compiles or parses the guest's text there. It raises
    `BackendUnavailable`, saying what to install, when the toolchain is missing.

    A third-party package registers a factory (a class, usually) in its own metadata::

        [project.entry-points."warmcell.languages"]
        ruby = "my_package:RubyRuntime"
    """

    @property
    def name(self) -> str: ...

    def prepare(self, code: str, config: ProcessConfig) -> Program: ...


def language_names() -> tuple[str, ...]:
    """Every name that `language_runtime` knows, ours first."""
    ours = tuple(str(name) for name in BUILT_IN)
    return (*ours, *sorted({entry.name for entry in _installed()} - set(ours)))


def _installed(name: str | None = None) -> list[EntryPoint]:
    """Entry points of other packages. Importing the metadata machinery takes longer than most runs: only when asked."""
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP) if name is None else entry_points(group=GROUP, name=name))


def language_runtime(language: Language | str) -> LanguageRuntime:
    """The runtime for a language; one object per language serves every run."""
    if not isinstance(language, str):
        raise InvalidRequest(f"must be text, not {type(language).__name__}", field="language")
    return _runtime(str(language))


@lru_cache(maxsize=64)
def _runtime(name: str) -> LanguageRuntime:
    runtime = _load(name)()
    if not isinstance(runtime, LanguageRuntime):
        raise BackendUnavailable(
            f"{name!r} gave a {type(runtime).__name__}, which is not a language runtime",
            hint="implement warmcell.languages.registry.LanguageRuntime: name, prepare()",
        )
    return runtime


def _load(name: str) -> Any:
    home = next((home for language, home in BUILT_IN.items() if language == name), None)
    if home is not None:
        module, _, attribute = home.partition(":")
        return getattr(import_module(module), attribute)
    found = _installed(name)
    if not found:
        known = ", ".join(language_names())
        raise InvalidRequest(f"no runtime for {name[:40]!r}", field="language", hint=f"one of {known}")
    return _load_entry(found[0])


def _load_entry(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(
            f"language {entry.name!r} ({entry.value}) could not be imported: {error}",
            hint="reinstall the package that brings it",
        ) from error
