"""LiveSetup: what the live cages of sibling sandboxes have in common, found by the first of them only.

Siblings have the same settings and a work directory each: forks of a sandbox, and the sandboxes of a checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.backends.process.live_start import LiveTemplate
    from warmcell.languages.config import ProcessConfig
    from warmcell.languages.host_tools import HostTools
    from warmcell.policy.resolve import EffectivePolicy

#: Toolchains of the host may change, and are then looked for again. The sandbox that a checkpoint keeps ready for its
#: next session may be as old.
_KEPT_SECONDS = 10.0


class LiveSetup:
    """Shared by the backends of siblings. Safe from many threads, because what it keeps is replaced as a whole."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tools: tuple[float, HostTools] | None = None
        self._template: tuple[float, tuple[str, ...], LiveTemplate] | None = None

    def tools(self, find: Callable[[], HostTools]) -> HostTools:
        kept = self._tools
        if kept is not None and self._is_recent(kept[0]) and all(map(os.path.lexists, kept[1].shown)):
            return kept[1]
        began, found = self._clock(), find()
        self._tools = (began, found)
        return found

    def template(self, effective: EffectivePolicy, config: ProcessConfig, shown: tuple[str, ...]) -> LiveTemplate:
        kept = self._template
        if kept is not None and self._is_recent(kept[0]) and kept[1] == shown:
            template = kept[2].for_policy(effective)
            if template is not None:
                return template
        from warmcell.backends.process.live_start import LiveTemplate

        began, template = self._clock(), LiveTemplate(effective, config, shown)
        self._template = (began, shown, template)
        return template

    def _is_recent(self, began: float) -> bool:
        return self._clock() - began < _KEPT_SECONDS
