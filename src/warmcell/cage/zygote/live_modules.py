"""The modules of the agent of live cages and of its Python sessions, loaded once for all later cages.

They do not stay in `sys.modules`: other guests have the modules of a new interpreter, and a session only those that it
needs. So a guest's own `pickle.py` is imported as usual.
"""

from __future__ import annotations

import _imp
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import SourceFileLoader
from types import ModuleType

from ..records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Dict, List, Optional, Set, Tuple

    Modules = Dict[str, ModuleType]
    Version = List[Tuple[int, int]]

#: The package and its directory, as `guest/live/start.py` names them.
_PACKAGE, _SHOWN_DIRECTORY = "warmcell_live", "/code/live"
_AGENT = "agent"
_ENTRY_POINTS = ("__init__", "start")
#: Imported in this order: the agent, a Python session, and the code that resumes a session from an image.
_IMPORTED = (_AGENT, "python_session", "session_image")


def find_version(directory: str) -> Version:
    """Inodes and times of its modules, which change with an upgrade. Empty if the directory cannot be read."""
    try:
        with os.scandir(directory) as entries:
            states = [entry.stat() for entry in entries if entry.name.endswith(".py")]
    except OSError:
        return []
    return sorted((state.st_ino, state.st_mtime_ns) for state in states)


class LiveModules(NamedTuple):
    """The modules that an agent has before it receives its job."""

    #: The modules of the agent, by name. Its module `preloaded` has those of sessions.
    modules: Modules
    #: Finds all other modules of the package, such as those of other sessions.
    finder: _Finder


def load(directory: str, version: Version) -> Optional[LiveModules]:
    """Load the modules. None if that fails, or for another version than the supervisor's: the agent loads its own."""
    if not version or find_version(directory) != version:
        return None
    before, finder = set(sys.modules), _Finder()
    sys.meta_path.append(finder)
    try:
        finder.read(directory)
        return LiveModules(_load_all(before), finder)
    except Exception:
        return None
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            sys.modules.pop(name, None)


def _load_all(before: Set[str]) -> Modules:
    package = sys.modules[_PACKAGE] = ModuleType(_PACKAGE)
    package.__path__ = []
    loaded: Dict[str, Modules] = {}
    for name in _IMPORTED:
        __import__(f"{_PACKAGE}.{name}")
        known = before.union(*loaded.values())
        # A copy: a finalizer that runs meanwhile may import something.
        loaded[name] = {new: module for new, module in sys.modules.copy().items() if new not in known}
    of_agent = loaded.pop(_AGENT)
    for name in [name for found in loaded.values() for name in found if name.startswith(f"{_PACKAGE}.")]:
        delattr(package, name.rpartition(".")[2])  # otherwise an import would find it there
    of_agent[f"{_PACKAGE}.preloaded"].modules.update(loaded)
    return of_agent


class _Finder:
    """Finds our modules, also in a cage, where their directory is hidden."""

    def __init__(self) -> None:
        self._codes: Dict[str, CodeType] = {}

    def read(self, directory: str) -> None:
        """Read all modules, with their file names in the cage: guests must not see our paths."""
        for file in os.listdir(directory):
            stem, _, suffix = file.rpartition(".")
            if suffix == "py" and stem not in _ENTRY_POINTS:
                name = f"{_PACKAGE}.{stem}"
                code = SourceFileLoader(name, f"{directory}/{file}").get_code(name)
                assert code is not None
                _imp._fix_co_filename(code, f"{_SHOWN_DIRECTORY}/{file}")  # type: ignore[attr-defined]
                self._codes[name] = code

    def find_spec(self, name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        code = self._codes.get(name)
        if code is None:
            return None
        spec = ModuleSpec(name, _Loader(code), origin=code.co_filename)  # type: ignore[arg-type]
        spec.has_location = True
        return spec


class _Loader:
    def __init__(self, code: CodeType) -> None:
        self._code = code

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)  # noqa: S102  # our own file, by its path
