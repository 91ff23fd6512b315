"""`python -m warmcell`, for when the script is not on PATH."""

from warmcell.interfaces.cli import main

raise SystemExit(main())
