"""An open directory that is listed one entry at a time."""

from __future__ import annotations

import os
from contextlib import ExitStack

from warmcell.core.light import closing_fd
from warmcell.workspace.names import Parts


class OpenListing:
    """`watch` is that of a new directory, whose entries are reported."""

    def __init__(self, directory: int, parts: Parts, watch: int | None) -> None:
        """The caller may close its own descriptor of the directory."""
        self.parts, self.watch = parts, watch
        self.names: set[str] = set()
        with ExitStack() as owned:
            # Some file systems do not state the types of entries, which are then looked up in this descriptor.
            descriptor = owned.enter_context(closing_fd(os.dup(directory)))
            self.entries = owned.enter_context(os.scandir(descriptor))
            self.close = owned.pop_all().close
