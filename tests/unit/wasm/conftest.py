"""The guest's files are scripts that import each other by name; here they are imported the same way."""

from __future__ import annotations

import sys
from pathlib import Path

GUEST = Path(__file__).resolve().parents[3] / "src" / "warmcell" / "guest"
if str(GUEST) not in sys.path:
    sys.path.append(str(GUEST))
