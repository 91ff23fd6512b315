"""The first lines of a live cage: its modules get a package of their own, out of the way of everybody's names."""

import sys
from types import ModuleType

# What lies in the work directory must not be taken for a module of the standard library.
del sys.path[0]
_package = ModuleType("warmcell_live")
_package.__path__ = ["/code/live"]
sys.modules["warmcell_live"] = _package

from warmcell_live import agent  # noqa: E402

# Returns in a forked worker only, so that nothing of the agent is on its stack.
agent.main()()
