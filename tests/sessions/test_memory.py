"""Cells over the limit of memory that the watcher has not seen, as on a busy host; and what is left of their cage."""

from __future__ import annotations

from typing import Any

import pytest

from warmcell import MemoryExceeded, Sandbox, SessionEnded
from warmcell.backends.process import session_worker
from warmcell.backends.process.live import LiveCage
from warmcell.core.records import replace
from warmcell.runner.cgroup_parent import group_parent
from warmcell.runner.guest_memory import guest_memory

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]

_TAKE = "kept = bytearray(b'm' * (200 << 20))"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each look of the host found, with a limit of 64 MB. The watcher has the higher one of the sandbox."""
    if group_parent() is not None:
        pytest.skip("control groups limit memory here")
    found: list[int] = []
    check = LiveCage.end_if_over_memory

    def check_lower_limit(cage: LiveCage, peak: int) -> bool:
        effective = cage.template.effective
        lower = replace(effective, limits=replace(effective.limits, memory_mb=64))
        monkeypatch.setattr(cage.template, "effective", lower)
        return check(cage, peak)

    def note(pids: list[int], limit: int) -> int:
        found.append(guest_memory(pids, limit))
        return found[-1]

    monkeypatch.setattr(LiveCage, "end_if_over_memory", check_lower_limit)
    monkeypatch.setattr("warmcell.backends.process.live.guest_memory", note)
    return found


@pytest.mark.claim("WC-RX-8")
def test_the_cell_that_took_the_memory_is_the_one_that_fails(looks: list[int]) -> None:
    with Sandbox(memory_limit_mb=1024, timeout=60) as sandbox, sandbox.session() as session:
        assert session.run("6 * 7").value == "42"
        with pytest.raises(MemoryExceeded, match="64 MB") as ended:
            session.run(f"print('so far', flush=True)\n{_TAKE}\n'done'")
        assert ended.value.result is not None and ended.value.result.stdout == "so far\n"
        assert len(looks) == 1 and looks[0] > 200 << 20
        with pytest.raises(SessionEnded, match="memory"):
            session.run("1")
        session.restart()
        assert session.run("6 * 7").value == "42"


def test_memory_that_was_returned_is_no_fault(looks: list[int]) -> None:
    """And is looked for once: the peak stays."""
    with Sandbox(memory_limit_mb=1024, timeout=60) as sandbox, sandbox.session() as session:
        assert session.run(f"{_TAKE}\ndel kept\n'done'").value == "'done'"
        assert session.run("6 * 7").value == "42"
        assert len(looks) == 1 and looks[0] < 64 << 20


def test_a_restart_outlives_the_end_of_its_cage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old cage may end for what the old worker did, while the new one starts in it."""
    start, cages = session_worker.start, []

    def start_late(cage: LiveCage, *arguments: Any, **options: Any) -> Any:
        cages.append(cage)
        if len(cages) == 1:
            cage.end_soon("the live cage exceeded its memory limit")
            cage.ended.result(60)
        return start(cage, *arguments, **options)

    with Sandbox(timeout=60) as sandbox, sandbox.session() as session:
        monkeypatch.setattr(session_worker, "start", start_late)
        session.restart()
        assert session.run("6 * 7").value == "42"
        assert len(cages) == 2 and cages[0] is not cages[1]


def test_a_restart_that_cannot_succeed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(cage: LiveCage, *arguments: Any, **options: Any) -> Any:
        raise SessionEnded("each time")

    with Sandbox(timeout=60) as sandbox, sandbox.session() as session:
        with monkeypatch.context() as patch, pytest.raises(SessionEnded, match="each time"):
            patch.setattr(session_worker, "start", start)
            session.restart()
        session.restart()
        assert session.run("6 * 7").value == "42"
