"""Where the modules are: in this directory in a checkout, otherwise in the package `warmcell-toolbox`."""

from __future__ import annotations

import functools
import os
from _frozen_importlib_external import PathFinder

from warmcell.lifetime.late_site import run_site

PACKAGE = "warmcell_toolbox"
REMEDY = "pip install 'warmcell[wasm]'"
_OWN = os.path.dirname(os.path.realpath(__file__))


@functools.cache
def modules_directory() -> str:
    """The directory of the modules. Without any it is our own, where nothing will be found."""
    if os.path.isfile(os.path.join(_OWN, "toolbox.wasm")):
        return _OWN
    spec = PathFinder.find_spec(PACKAGE)
    if spec is None:
        run_site()  # the command line may have skipped it
        spec = PathFinder.find_spec(PACKAGE)
    return _OWN if spec is None or not spec.origin else os.path.dirname(os.path.realpath(spec.origin))


@functools.cache
def ready_made_directory() -> str:
    """The compiled modules, visible to workers. It may be missing."""
    return os.path.join(modules_directory(), "ready_made")


def has_modules() -> bool:
    return os.path.isfile(os.path.join(modules_directory(), "toolbox.wasm"))
