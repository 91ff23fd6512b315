"""Load the modules that requests may need before the server accepts any.

A package that is replaced while the server runs must not be mixed with what the server has loaded. The modules for
`/mcp` are executed by its first request, since their SDK takes longer to load than everything else and most servers
have no MCP clients; their code is read at the start.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

_PACKAGE = "warmcell"
#: With all modules below them.
_ROOMS = (
    *("backends.process", "backends.streaming", "cage", "core", "diagnosis.doctor", "enforcers", "images"),
    *("interfaces.serve", "judging", "languages", "lifetime", "net", "observe", "policy", "pool", "runner"),
    *("sandbox", "sessions", "toolbox.location", "workspace", "workspaces"),
)
#: Read, and executed when they are imported.
_LATER = "interfaces.mcp"


class KeptCode(MetaPathFinder, InspectLoader):
    """Finds the modules of one package by the code that they had when this was made."""

    def __init__(self, package: str) -> None:
        self._specs: dict[str, ModuleSpec] = {}
        self._code: dict[str, CodeType] = {}
        for found in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
            self._keep(found.name)

    def _keep(self, name: str) -> None:
        spec = find_spec(name)
        if spec is not None and isinstance(spec.loader, InspectLoader) and (code := spec.loader.get_code(name)):
            self._code[name] = code
            self._specs[name] = ModuleSpec(name, self, origin=spec.origin)
            self._specs[name].has_location = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return self._specs.get(fullname)

    def get_code(self, fullname: str) -> CodeType:
        return self._code[fullname]

    def get_source(self, fullname: str) -> None:
        return None

    def is_package(self, fullname: str) -> bool:
        return False


def load_modules() -> None:
    for room in _ROOMS:
        _load(f"{_PACKAGE}.{room}")
    if not any(isinstance(finder, KeptCode) for finder in sys.meta_path):
        sys.meta_path.insert(0, KeptCode(f"{_PACKAGE}.{_LATER}"))


def _load(name: str) -> None:
    try:
        module = import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == _PACKAGE:
            raise
        return  # it needs a package that is not installed, and then no request can use it
    for found in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}."):
        if not found.name.endswith(".__main__"):
            _load(found.name)
