"""The modules of the agent of live cages and of its Python sessions, loaded once for all later cages.

They do not stay in `sys.modules`: other guests find what a new interpreter has, and a session only what it needs. So a
guest's own `pickle.py` is imported as it would be without this.
"""

from __future__ import annotations

import _imp
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import SourceFileLoader
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Dict, List, Optional, Set, Tuple

    Modules = Dict[str, ModuleType]
    Version = List[Tuple[int, int]]

#: The package and its directory, as `guest/live/start.py` names them.
_PACKAGE, _SHOWN_DIRECTORY = "warmcell_live", "/code/live"
_AGENT = "agent"
#: What is imported, one after the other: the agent, a Python session, and how a session continues from an image.
_IMPORTED = (_AGENT, "python_session", "session_image")


def find_version(directory: str) -> Version:
    """Inodes and times of its modules: they differ after an upgrade. Empty if the directory cannot be read."""
    try:
        with os.scandir(directory) as entries:
            states = [entry.stat() for entry in entries if entry.name.endswith(".py")]
    except OSError:
        return []
    return sorted((state.st_ino, state.st_mtime_ns) for state in states)


def load(directory: str, version: Version) -> Modules:
    """The modules of the agent, by name. Its module `preloaded` has those of sessions.

    Empty if they cannot be loaded, or are another version than the supervisor's: the agent then loads its own.
    """
    if not version or find_version(directory) != version:
        return {}
    before, finder = set(sys.modules), _Finder(directory)
    sys.meta_path.append(finder)
    try:
        return _load_all(before)
    except Exception:
        return {}
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            del sys.modules[name]


def _load_all(before: Set[str]) -> Modules:
    package = sys.modules[_PACKAGE] = ModuleType(_PACKAGE)
    package.__path__ = []
    loaded: Dict[str, Modules] = {}
    for name in _IMPORTED:
        __import__(f"{_PACKAGE}.{name}")
        known = before.union(*loaded.values())
        loaded[name] = {new: module for new, module in sys.modules.items() if new not in known}
    of_agent = loaded.pop(_AGENT)
    for name in [name for found in loaded.values() for name in found if name.startswith(f"{_PACKAGE}.")]:
        delattr(package, name.rpartition(".")[2])  # an import would find it there
    of_agent[f"{_PACKAGE}.preloaded"].modules.update(loaded)
    return of_agent


class _Finder:
    """Finds our modules in the directory. They get their file names in the cage: guests must not see our paths."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def find_spec(self, name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        package, _, stem = name.rpartition(".")
        if package != _PACKAGE:
            return None
        code = SourceFileLoader(name, f"{self._directory}/{stem}.py").get_code(name)
        shown = f"{_SHOWN_DIRECTORY}/{stem}.py"
        _imp._fix_co_filename(code, shown)  # type: ignore[attr-defined]
        spec = ModuleSpec(name, _Loader(code), origin=shown)  # type: ignore[arg-type]
        spec.has_location = True
        return spec


class _Loader:
    def __init__(self, code: Optional[CodeType]) -> None:
        self._code = code

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self._code is None:
            raise ImportError(module.__name__)
        code, self._code = self._code, None
        exec(code, module.__dict__)  # noqa: S102  # our own file, by its path
