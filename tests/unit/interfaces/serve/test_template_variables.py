"""The variables of a template, which each of its sandboxes keeps in memory. Templates of templates add theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warmcell.images import ImageStore
from warmcell.images.build.state import BuildState
from warmcell.interfaces.serve.e2b import template_build
from warmcell.interfaces.serve.e2b.template_build import (
    MAX_VARIABLES,
    Cancellation,
    StartBuild,
    TemplateBuild,
    TemplateFailed,
    TemplateStep,
)

NOTHING: Any = None


def test_the_variables_of_all_steps_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_build, "check_room", lambda _: None)
    store = ImageStore(tmp_path / "store")
    build = TemplateBuild(store, NOTHING, "tenant", StartBuild(), NOTHING, 64, Cancellation(), lambda *_: None)
    half = "x" * (MAX_VARIABLES // 2)
    with store.adding() as parts:
        state = build._apply_step(parts, TemplateStep(type="ENV", args=["A", half]), BuildState(), "1")
        state = build._apply_step(parts, TemplateStep(type="ENV", args=["A", half[1:]]), state, "2")
        with pytest.raises(TemplateFailed, match="variables of the template") as failed:
            build._apply_step(parts, TemplateStep(type="ENV", args=["B", half]), state, "3")
    assert state.env == {"A": half[1:]} and failed.value.step == "3"
