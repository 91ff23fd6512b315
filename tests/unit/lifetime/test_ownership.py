"""What belongs to a process, in its forks and at its end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.helpers import in_a_fork

from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.ownership import Lock, fork_lock, own, own_until_exit

SOURCE = Path(__file__).resolve().parents[3] / "src" / "warmcell"
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


class Thing:
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def abandon(self) -> None:
        self.notes.append("abandoned")

    def close(self) -> None:
        self.notes.append("closed")


def test_a_fork_abandons_what_the_original_keeps() -> None:
    thing = own(Thing())
    assert in_a_fork(lambda: thing.notes) == ["abandoned"]
    assert thing.notes == []


def test_unused_ones_are_forgotten() -> None:
    notes = own(Thing()).notes
    assert in_a_fork(lambda: notes) == []


def test_one_that_fails_does_not_keep_the_others() -> None:
    class Broken(Thing):
        def abandon(self) -> None:
            raise OSError("closed behind its back")

    first, broken, last = own(Thing()), own(Broken()), own(Thing())
    assert in_a_fork(lambda: [first.notes, broken.notes, last.notes]) == [["abandoned"], [], ["abandoned"]]


def test_a_lock_that_is_held_while_forking_is_free_in_the_fork() -> None:
    lock = Lock()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def take() -> str:
        with lock:
            return "taken"

    try:
        assert in_a_fork(take, seconds=10) == "taken"
    finally:
        done.set()
        holder.join()


def test_a_fork_waits_until_descriptors_have_their_owner() -> None:
    """Between the two a copy would keep them for ever."""
    owned = Descriptors()
    opening, go_on = threading.Event(), threading.Event()
    opened: list[int] = []

    def open_slowly() -> int:
        opened.append(os.open("/dev/null", os.O_RDONLY))
        opening.set()
        go_on.wait(0.3)
        return opened[0]

    opener = threading.Thread(target=owned.open, args=(open_slowly,))
    opener.start()
    opening.wait()
    assert in_a_fork(lambda: os.path.exists(f"/proc/self/fd/{opened[0]}")) is False
    opener.join()
    os.fstat(opened[0])
    owned.close()


def test_a_signal_handler_that_forks_does_not_wait_for_itself() -> None:
    with fork_lock:
        assert in_a_fork(lambda: "forked", seconds=10) == "forked"
    assert in_a_fork(lambda: "again", seconds=10) == "again"


AT_EXIT = """
import os, sys
from warmcell.lifetime.ownership import own_until_exit
class Thing:
    def __init__(self, name): self.name = name
    def abandon(self): self.name = "nothing"
    def close(self): os.write(1, f"{os.getpid() == owner} {self.name}\\n".encode())
owner = os.getpid()
first, second = own_until_exit(Thing("first")), own_until_exit(Thing("second"))
if sys.argv[1:] and os.fork() == 0:
    sys.exit(0)
if sys.argv[1:]:
    os.wait()
"""


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a fork that exits first"])
def test_the_latest_made_is_closed_first_and_by_its_own_process(forks: bool) -> None:
    command = [sys.executable, "-c", AT_EXIT, *(["fork"] if forks else [])]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    in_the_fork = ["False nothing", "False nothing"] if forks else []
    assert said == [*in_the_fork, "True second", "True first"]


def test_one_that_cannot_be_closed_does_not_keep_the_others() -> None:
    broken = """
class Broken(Thing):
    def close(self): raise RuntimeError("can't create new thread at interpreter shutdown")
third = own_until_exit(Broken("third"))
"""
    said = subprocess.run([sys.executable, "-c", AT_EXIT + broken], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["True second", "True first"]


def test_there_is_one_place_that_hears_of_forks() -> None:
    """And of exits; what runs inside cages and components has an interpreter of its own."""
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in ("guest", "toolbox")
        and any(word in path.read_text(encoding="utf-8") for word in ("register_at_fork(", "atexit.register("))
    }
    assert found == {"lifetime/ownership.py"}


def test_closing_at_exit_also_means_owned() -> None:
    thing = own_until_exit(Thing())
    assert in_a_fork(lambda: thing.notes) == ["abandoned"]
