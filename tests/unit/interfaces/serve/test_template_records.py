"""Records of templates and their builds, which several workers read and change."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmcell.interfaces.serve.e2b.template_records import BUILDING, ERROR, READY, TemplateRecords


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
