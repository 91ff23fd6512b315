"""How a cell joins the control groups that its supervisor made for it."""

from __future__ import annotations

import errno

from .call_list import CallList, Value
from .namespaces import CLONE_NEWCGROUP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable


def join(calls: CallList, groups: Iterable[Value], must_hide: bool) -> None:
    """Moves the process into groups whose `cgroup.procs` were opened outside, and hides their ancestors.

    The classes without namespaces may not make a cgroup namespace either.
    """
    calls.begin_step("join cgroup")
    for group in groups:
        calls.call("write", group, b"0", 1, expected=1)
    calls.call("unshare", CLONE_NEWCGROUP, allowed_errno=0 if must_hide else errno.EPERM)
