"""What /proc tells of cages: a tree of the test's own, and a real sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmcell import Sandbox
from warmcell.observe.host_cages import HostCage, find_cages
from warmcell.pool.prestarted_manager import MANAGER_MARK


class Proc:
    """A made-up /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "uptime").write_text("100.0 50.0\n")
        (root / "self").mkdir()

    def add(self, pid: int, parent: int, *words: str, inner: int | None = None, name: str = "python3") -> None:
        place = self.root / str(pid)
        place.mkdir()
        numbers = ["S", str(parent), *["0"] * 9, "150", "50", *["0"] * 6, "9000", "0"]
        (place / "stat").write_text(f"{pid} ({name}) {' '.join(numbers)}\n")
        innermost = "" if inner is None else f"\t{inner}"
        (place / "status").write_text(f"Name:\t{name}\nNSpid:\t{pid}{innermost}\nRssAnon:\t    2048 kB\n")
        (place / "cmdline").write_bytes("\0".join((*words, "")).encode())

    def cages(self) -> list[HostCage]:
        return find_cages(str(self.root))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    made = Proc(tmp_path)
    made.add(10, 1, "/usr/bin/python3", "agent.py")
    made.add(11, 10, "/usr/bin/python3", "-I", "-S", "-c", f"x\n{MANAGER_MARK}\n", "/x/cage")
    made.add(12, 11, "init", inner=1)
    made.add(13, 11, "python3", "main.py", inner=2)
    return made


def test_a_cage_is_what_its_manager_started_in_a_namespace(proc: Proc) -> None:
    proc.add(14, 13, "sleep", "100", inner=3, name="a) (b")
    proc.add(15, 12, "daemon", inner=4)
    proc.add(16, 11, "watcher")
    first, second = sorted(proc.cages(), key=lambda cage: cage.pid)
    assert (first.pid, first.program, first.program_name) == (13, 10, "/usr/bin/python3 agent.py")
    assert (first.command, first.processes, first.memory) == ("sleep 100", 2, 4 << 20)
    ticks = os.sysconf("SC_CLK_TCK")
    assert first.cpu_seconds == 400 / ticks and first.seconds == 100 - 9000 / ticks
    assert (second.command, second.processes) == ("daemon", 1)


def test_what_ends_meanwhile_or_names_itself_so_is_left_out(proc: Proc) -> None:
    (proc.root / "13" / "status").unlink()
    proc.add(20, 10, "vi", f"notes about {MANAGER_MARK}")
    proc.add(21, 20, "sh", inner=2)
    assert proc.cages() == []


@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
def test_a_real_sandbox_is_seen_while_it_lives() -> None:
    def own() -> list[str]:
        return [cage.command for cage in find_cages() if cage.program == os.getpid()]

    with Sandbox() as sandbox:
        sandbox.spawn("sleep 987")
        assert any("sleep 987" in command for command in own())
    assert not any("sleep 987" in command for command in own())
