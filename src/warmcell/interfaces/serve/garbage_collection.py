"""Garbage collection in small steps, so that no request waits for a full collection."""

from __future__ import annotations

import gc

#: A collection takes a millisecond or two. `import warmcell` sets the first threshold to 100,000, which suits commands
#: that exit before it is reached; a server would then collect them all in the middle of a request.
_THRESHOLDS = (2000, 10, 10)


def freeze_loaded_objects() -> None:
    """Exclude the objects that exist now from all later collections. Call it after much was loaded."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
