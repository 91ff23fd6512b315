"""The first lines of a live cage: its modules get a package of their own, out of the way of everybody's names."""

import marshal
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
from types import ModuleType

# What lies in the work directory must not be taken for a module of the standard library.
del sys.path[0]
_PLACE = "/code/live"


class _Modules:
    """Finds and loads them, out of one file: twenty take longer to write and to look for than all the rest."""

    def __init__(self):
        with open(_PLACE + "/modules", "rb") as file:
            magic, sources, compiled = marshal.load(file)
        #: What another version of Python has compiled is of no use here.
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


_package = ModuleType("warmcell_live")
_package.__path__ = []
sys.modules["warmcell_live"] = _package
sys.meta_path.append(_Modules())

from warmcell_live import agent  # noqa: E402

# Returns in a forked worker only, so that nothing of the agent is on its stack.
agent.main()()
