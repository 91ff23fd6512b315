"""Records of templates and their builds, which several workers read and change."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmcell.interfaces.serve.e2b import template_builder
from warmcell.interfaces.serve.e2b.template_records import BUILDING, ERROR, READY, TemplateRecords
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.service import LOCAL_TENANT


@pytest.fixture
def records(tmp_path: Path) -> TemplateRecords:
    return TemplateRecords(str(tmp_path), "tenant")


def start_build(records: TemplateRecords) -> tuple[str, str]:
    template, build = records.request_build("name", ["default"], 4)
    with records.change(template.id) as changed:
        changed.builds[build.id].status = BUILDING
    return template.id, build.id


def test_a_build_without_a_server_has_failed(records: TemplateRecords) -> None:
    template, build = start_build(records)
    with records.carry_out(build):
        assert records.get_build(template, build)[1].status == BUILDING
    found = records.get_build(template, build)[1]
    assert (found.status, found.message) == (ERROR, "the server ended during the build")


def test_a_build_that_ends_while_its_status_is_read_stays_ready(
    records: TemplateRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, build = start_build(records)

    def end_first(_: str) -> bool:
        records.end_build(template, build, digest="sha256:1")
        return False

    monkeypatch.setattr(records, "_is_carried_out", end_first)
    assert records.get_build(template, build)[1].status == READY
    monkeypatch.undo()
    found = records.get(template).build_of("default")
    assert found is not None and found.status == READY


async def test_no_sandbox_gets_half_of_the_files_of_a_build_that_is_replaced(
    records: TemplateRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy passes over what is missing, so a rebuild meanwhile gave sandboxes with some of their files."""
    template, build = start_build(records)
    records.end_build(template, build, digest="sha256:1")
    os.mkdir(records.place_of(build, "home"))
    closed: list[str] = []

    async def copy_home(service: object, home: str, *_: object, **__: object) -> Any:
        _, next_build = start_build(records)
        records.end_build(template, next_build, digest="sha256:2")
        records.remove_leftovers()
        return SimpleNamespace(close=lambda: closed.append(home))

    monkeypatch.setattr(template_builder, "copy_home", copy_home)
    monkeypatch.setattr(template_builder, "builds_of", lambda _: SimpleNamespace(records=lambda _: records))
    found = records.get_build(template, build)[1]
    with pytest.raises(HttpError, match="built again"):
        await template_builder.copy_template_home(cast(Any, None), LOCAL_TENANT, found)
    assert closed == [records.place_of(build, "home")] and not os.path.exists(closed[0])
