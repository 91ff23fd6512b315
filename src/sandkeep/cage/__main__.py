"""Entry point of `python -I -S <cage directory> <control fd> <options>`: starts the zygote."""

import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _as_package() -> None:
    """Makes `cage` importable as a package without putting our directory on the guest's sys.path."""
    package = ModuleType("cage")
    package.__path__ = [_HERE]
    sys.modules["cage"] = package
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]


if __name__ == "__main__":
    _as_package()
    from cage.zygote import main  # type: ignore[import-not-found]

    main(sys.argv[1:])
