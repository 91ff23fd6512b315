"""`python -m sandkeep.interfaces.cli`, for when the script is not on PATH."""

from sandkeep.interfaces.cli import main

raise SystemExit(main())
