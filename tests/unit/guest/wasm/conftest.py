"""The worker's files are a package named `wasm`, found beside the script; here they are imported the same way."""

from __future__ import annotations

import sys
from pathlib import Path

GUEST = Path(__file__).resolve().parents[4] / "src" / "warmcell" / "guest"
if str(GUEST) not in sys.path:
    # First: the tests' own directory has a folder of the same name, which Python would take for a package as well.
    sys.path.insert(0, str(GUEST))
