"""Load the modules that requests may need before the server accepts any, so that no request waits for them.

Except those for `/mcp`, which its first request loads: their SDK takes longer to load than everything else, and most
servers have no MCP clients.
"""

from __future__ import annotations

import gc
import pkgutil
from importlib import import_module

_PACKAGE = "warmcell"
#: Packages that are loaded with all their modules.
_ROOMS = (
    *("backends.process", "backends.streaming", "cage", "core", "diagnosis.doctor", "enforcers", "images"),
    *("interfaces.serve", "judging", "languages", "lifetime", "net", "observe", "policy", "pool", "runner"),
    *("sandbox", "sessions", "toolbox.runtime", "workspace", "workspaces"),
)


def load_modules() -> None:
    for room in _ROOMS:
        _load(f"{_PACKAGE}.{room}")


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


#: A collection takes a millisecond or two. `import warmcell` sets the first threshold to 100,000, which suits commands
#: that exit before it is reached; a server would then collect them all in the middle of a request.
_THRESHOLDS = (2000, 10, 10)


def freeze_loaded_objects() -> None:
    """Exclude the objects that exist now from all later collections. Call it after much was loaded."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
