"""Which checks run in which setting. Read on both sides: in the machine to run them, outside to ask for each."""

from __future__ import annotations

from tests.qemu.guest.checks import DELEGATED, FULL, PLACED, SERVICE, WITHOUT_CPU, WITHOUT_GROUPS, Check
from tests.qemu.guest.settings import USER, Setting

#: What is seen only after Sandkeep has ended.
AFTERWARDS = "leaves no group and moves everybody back"

PLAN: tuple[tuple[Setting, dict[str, Check]], ...] = (
    (Setting("root", "cgroup v2"), FULL),
    (Setting("root's service", "cgroup v2", group="system/agent.service"), SERVICE),
    (Setting("user", "supervisor", USER, "session"), WITHOUT_GROUPS),
    (Setting("delegated", "cgroup v2", USER, "delegated/leaf", "delegated", has_company=True), DELEGATED),
    (Setting("alone in what is delegated", "cgroup v2", USER, "alone", "alone"), PLACED),
    (Setting("in company in what is delegated", "cgroup v2", USER, "crowd", "crowd", has_company=True), PLACED),
    (Setting("delegated without cpu", "cgroup v2", USER, "slice/some", "slice/some", "+memory +pids"), WITHOUT_CPU),
)
