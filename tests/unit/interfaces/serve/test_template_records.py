"""Records of templates and their builds, which several workers read and change."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmcell.core.records import replace
from warmcell.interfaces.serve.e2b import template_builder, templates
from warmcell.interfaces.serve.e2b.template_build import FINALIZE, StartBuild
from warmcell.interfaces.serve.e2b.template_builder import builds_of
from warmcell.interfaces.serve.e2b.template_records import BUILDING, ERROR, READY, REQUEST_SECONDS, TemplateRecords
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings


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


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"builds": {"a": 1}, "tags": {}}'])
def test_a_damaged_template_is_missing_and_the_others_stay(
    records: TemplateRecords, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a power loss leaves it. No request for a sandbox or a template of the tenant worked any more."""
    damaged, build = start_build(records)
    other, _ = records.request_build("other", ["default"], 4)
    Path(records.place_of(build, "log")).write_text("")
    Path(records.path, f"{damaged}.json").write_text(damage)
    assert [template.id for template in records.all()] == [other.id] and records.find("name") is None
    assert f"{damaged}.json is damaged" in caplog.text
    assert records.remove_leftovers() == [] and os.path.exists(records.place_of(build, "log"))
    records.remove(damaged)
    assert records.remove_leftovers() == [build]


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


def test_builds_that_ended_with_their_server_do_not_count_for_ever(
    records: TemplateRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only asking for the status of each marked them as failed, and their clients had gone."""
    template, build = start_build(records)
    with records.carry_out(build):
        for _ in range(3):
            start_build(records)
        with pytest.raises(HttpError, match="has 4 builds"):
            start_build(records)
        later = time.time() + REQUEST_SECONDS + 1
        monkeypatch.setattr(time, "time", lambda: later)
        next_build = start_build(records)[1]
    assert list(records.get(template).builds) == [build, next_build]


async def test_a_build_without_room_for_a_sandbox_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed with an internal error of the server."""
    service, tenant = Service(Settings(images=str(tmp_path))), replace(LOCAL_TENANT, sandboxes=0)
    builds = builds_of(service)
    records = builds.records(tenant)

    async def make(*_: object) -> Any:
        return SimpleNamespace(digest="sha256:1")

    monkeypatch.setattr(builds, "_build", make)
    try:
        template, build = start_build(records)
        begun = records.get(template).builds[build]
        begun.start_command = "true"
        await builds._carry_out(tenant, template, begun, StartBuild(), cast(Any, None), False)
        ended = records.get(template).builds[build]
        assert (ended.status, ended.step) == (ERROR, FINALIZE) and "sandbox quota exceeded" in ended.message
    finally:
        await service.aclose()


async def test_the_tags_of_a_template_are_bounded(records: TemplateRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request added 64, without end, to a file that is read again at each request."""
    template, build = start_build(records)
    records.end_build(template, build, digest="sha256:0")
    tags: list[str] = []

    async def read(*_: Any) -> Any:
        return SimpleNamespace(target="name", tags=tags)

    monkeypatch.setattr(templates, "_read", read)
    monkeypatch.setattr(templates, "_records", lambda *_: records)
    monkeypatch.setattr(templates, "MAX_TAGS", 3)
    nothing: Any = None
    for added, status in ((["a", "b"], 201), (["c"], 429), (["a"], 201)):
        tags[:] = added
        if status == 201:
            assert (await templates.assign_tags(nothing, LOCAL_TENANT)).status_code == status
        else:
            with pytest.raises(HttpError) as refused:
                await templates.assign_tags(nothing, LOCAL_TENANT)
            assert refused.value.status == status
    assert sorted(records.get("name").tags) == ["a", "b", "default"]


def test_the_log_of_a_build_is_bounded(records: TemplateRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 lines of 2,000 characters that JSON escapes were 240 MB, which each request for the status read."""
    monkeypatch.setattr(template_builder, "MAX_LOG_CHARACTERS", 100_000)
    _, build = start_build(records)
    log = template_builder.BuildLog(records, build)
    for _ in range(100):
        log.add("\N{SNOWMAN}" * 2000)
    log.flush()
    assert os.path.getsize(records.place_of(build, "log")) < 800_000
    assert [entry["message"] for entry in records.read_log(build, 50, 10)] == ["the log is full"]
    assert len(records.read_log(build, 0, 3)) == 3 and records.read_log(build, 51, 10) == []
