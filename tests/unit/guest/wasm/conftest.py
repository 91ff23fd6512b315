"""Makes the worker's files importable as the package `wasm`, as in a worker."""

from __future__ import annotations

import sys
from pathlib import Path

GUEST = Path(__file__).resolve().parents[4] / "src" / "warmcell" / "guest"
if str(GUEST) not in sys.path:
    # First: the tests have a directory of the same name, which Python would take for a namespace package.
    sys.path.insert(0, str(GUEST))
