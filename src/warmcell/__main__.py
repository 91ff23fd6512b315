"""The start of the command: `python -m warmcell`, and the script `bin/warmcell`."""

from __future__ import annotations

import os
import sys

import warmcell
from warmcell.cage.bundle import use


def start(is_site_due: bool = False) -> None:
    """Runs the command line of this process, and exits. `is_site_due`: Python was started without `site`."""
    use(warmcell.__path__[0], "warmcell", "")  # load all that follows from the one file, if there is one
    early = None
    if sys.platform == "linux" and sys.argv[1:2] in (["run"], ["sh"]) and "--help" not in sys.argv:
        # Before anything else of ours is loaded: it takes as long to load as we do, and can do so at the same time.
        from warmcell.pool.prestarted_manager import start_early

        early = start_early(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
    from warmcell.interfaces.cli import main

    main(early=early, is_site_due=is_site_due)


if __name__ == "__main__":
    start()
