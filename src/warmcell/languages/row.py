"""LanguageRow: one language as data. Languages that need code implement `runtime.LanguageRuntime`."""

from __future__ import annotations

from collections.abc import Mapping

from warmcell.core.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.languages.runtime import LanguageRuntime as LanguageRuntime


@dataclass(frozen=True, slots=True)
class LanguageRow:
    """A language as data. In commands, `{program}` is the program found, `{code}` and `{out}` are directories.

    A language that needs only commands has `programs` (names to look for on PATH, best first), `main_file`, a `start`
    and, if it is compiled, a `build` that produces `{out}/main`; else a `check`, which parses a program without running
    it. Any other names its `runtime`, as `module:class`. `shows` are host paths beside the program's own that the cage
    must show, if they exist.
    """

    name: str
    aliases: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    remedy: str = ""
    runtime: str = ""
    programs: tuple[str, ...] = ()
    main_file: str = ""
    build: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    shows: tuple[str, ...] = ()
    version: tuple[str, ...] = ("{program}", "--version")
    is_compiled: bool = False
    #: The built-in backend that runs it.
    backend: str = "process"


def __getattr__(name: str) -> object:
    """`LanguageRuntime`, by the name that other packages use; it takes longer to load than all the rows."""
    if name != "LanguageRuntime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warmcell.languages.runtime import LanguageRuntime

    return LanguageRuntime
