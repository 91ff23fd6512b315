"""`python -I -S <cage directory> DESCRIPTOR` runs a manager; with `command`, one command in one cage."""

import os
import sys
from types import ModuleType


def load_package(directory: str) -> None:
    """Make `cage` importable as a package without putting our directory on the guest's sys.path."""
    package = ModuleType("cage")
    package.__path__ = [directory]
    sys.modules["cage"] = package
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != directory]


if __name__ == "__main__":
    load_package(os.path.dirname(os.path.abspath(__file__)))
    if sys.argv[1] == "command":
        from cage.foreground import run_command  # type: ignore[import-not-found]

        run_command(sys.argv[2], sys.argv[3:])()()
    else:
        from cage.manager.start import main  # type: ignore[import-not-found]

        main(int(sys.argv[1]))()()
