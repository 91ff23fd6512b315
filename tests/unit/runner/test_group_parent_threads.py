"""Threads that need the place of all groups at the same moment get the same one, made once."""

from __future__ import annotations

import threading
import time

import pytest

from warmcell.runner.cgroup_parent import GroupParent


def test_it_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two places would be held by one set of locks: failing to get the second would give up the first as well."""
    made = []

    def slowly(self: GroupParent) -> dict[str, str]:
        made.append(len(made))
        time.sleep(0.05)
        return {"": f"/nowhere/{len(made)}"}

    monkeypatch.setattr(GroupParent, "_create", slowly)
    parent = GroupParent({"": "/nowhere"})
    found: list[dict[str, str]] = []
    threads = [threading.Thread(target=lambda: found.append(parent.directories)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parent.abandon()
    assert made == [0] and found == [{"": "/nowhere/1"}] * 4
