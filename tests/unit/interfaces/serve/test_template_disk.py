"""Builds of templates leave a part of the disk to others, and their errors show no path of the host."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.images import ImageStore
from warmcell.images.build.steps import Step, User
from warmcell.interfaces.serve.e2b.template_build import Cancellation, StartBuild, TemplateBuild, TemplateFailed

NOTHING: Any = None


def test_a_step_that_would_fill_the_disk_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template may have 127 layers of the disk limit each, and a token 64 templates."""
    applied: list[Step] = []

    def apply(step: Step, state: Any) -> Any:
        applied.append(step)
        return state

    builder: Any = SimpleNamespace(apply=apply)
    store = ImageStore("/srv/operator/store")
    build = TemplateBuild(store, NOTHING, "tenant", StartBuild(), NOTHING, 64, Cancellation(), lambda *_: None)
    disk = SimpleNamespace(f_blocks=1000, f_frsize=1 << 20, f_bavail=60)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    build._apply(builder, [User("one")], NOTHING, "1")
    disk.f_bavail = 40
    with pytest.raises(TemplateFailed, match="less than 50 MB of the disk free") as failed:
        build._apply(builder, [User("two")], NOTHING, "2")
    assert [step.name for step in applied if isinstance(step, User)] == ["one"]
    assert failed.value.step == "2" and "operator" not in failed.value.message
