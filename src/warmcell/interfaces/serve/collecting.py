"""When the server's garbage is collected: often and little, so that no request waits for a look at all there is."""

from __future__ import annotations

import gc

#: A look at so many takes a millisecond or two. `warmcell` itself collects at a hundred thousand objects, as a command
#: ends before: a server would look at all of them at once, in the middle of somebody's request.
_THRESHOLDS = (2000, 10, 10)


def keep_what_is_loaded() -> None:
    """What is there now is taken to stay, and never looked at again. To be called seldom: when much was loaded."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
