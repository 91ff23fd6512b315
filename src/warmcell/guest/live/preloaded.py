"""Modules that are loaded already, because the zygote did so before it forked this cage's agent."""

import sys

#: By the module of ours that imports them; each has its name and those of what else it imports.
modules = {}


def use(name):
    """To be called before the import of that module, which is then found.

    Not if the guest has imported any of the others itself: there would be two of it, and one may be the guest's own.
    """
    found = modules.pop(name, {})
    if not found.keys() & sys.modules.keys():
        sys.modules.update(found)
