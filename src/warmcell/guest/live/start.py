"""The entry point of a live cage: loads the agent's modules as a package of their own, apart from the guest's.

With an argument it is the entry point of that worker, in an interpreter of its own: that of an image.
"""

import marshal
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
from types import ModuleType

# A file in the work directory must not shadow a module of the standard library.
del sys.path[0]
_PLACE = "/code/live"


class _Modules:
    """Loads the modules from one file: twenty files take too long to write and to find."""

    def __init__(self):
        with open(_PLACE + "/modules", "rb") as file:
            magic, sources, compiled = marshal.load(file)
        #: Compiled code is for one version of Python only.
        self._kept = compiled if magic == MAGIC_NUMBER else sources

    def find_spec(self, name, path=None, target=None):
        package, _, stem = name.rpartition(".")
        if package != "warmcell_live" or stem not in self._kept:
            return None
        spec = ModuleSpec(name, self, origin=f"{_PLACE}/{stem}.py")
        spec.has_location = True
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        kept = self._kept[module.__name__.rpartition(".")[2]]
        code = marshal.loads(kept) if isinstance(kept, bytes) else compile(kept, module.__file__, "exec")
        exec(code, module.__dict__)


if "warmcell_live" not in sys.modules:  # the zygote has not loaded it
    _package = ModuleType("warmcell_live")
    _package.__path__ = []
    sys.modules["warmcell_live"] = _package
sys.meta_path.append(_Modules())

if len(sys.argv) > 1:
    import importlib
    import os

    sys.path.insert(0, os.getcwd())
    importlib.import_module("warmcell_live." + sys.argv[1]).main()
else:
    from warmcell_live import agent

    # Returns only in a forked worker, whose stack then has no frame of the agent.
    agent.main()()
