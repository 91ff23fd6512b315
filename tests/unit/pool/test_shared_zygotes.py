"""Backends of one program share the zygotes that they may, and each can go without harm to the others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contract.processes import alive
from tests.helpers import (
    PATIENCE,
    eventually,
    in_a_fork,
    is_process_named,
    naming,
    open_descriptors,
    share_no_zygotes,
    until,
)

from warmcell import (
    ExecRequest,
    ProcessBackend,
    ProcessConfig,
    Sandbox,
    SandboxError,
    SandboxPolicy,
    SandboxPolicyBuilder,
)
from warmcell.backends.process.cell_template import _has_private_paths
from warmcell.cage.linux.processes import children
from warmcell.cage.plan import Bind, LaunchPlan
from warmcell.lifetime.host_program import base_executable
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.pool import manager_process
from warmcell.pool import shared_zygotes as module
from warmcell.pool.manager_process import start_ahead
from warmcell.pool.shared_zygotes import SharedZygotes, ZygoteShare
from warmcell.pool.zygote import ZygoteKey

REQUEST = ExecRequest("python", "print(6 * 7)", 30)
SLOW = ExecRequest("python", "import time; time.sleep(1); print('slow')", 30)
ON_DEMAND = ProcessConfig(pool_size=0, pool_min=0)
KEY = ZygoteKey("/usr/bin/python3", "namespaces", "native")


@pytest.fixture(autouse=True)
def nothing_started_ahead() -> None:
    """A command that another test has run in this process may have left a manager, which ends after its first guest."""
    while manager_process._prestarted:
        manager_process._prestarted.popitem()[1].discard()


def answers(backend: ProcessBackend) -> bool:
    return backend.execute_blocking(REQUEST).stdout == "42\n"


def zygotes_of(manager: int) -> set[int]:
    """The manager's children in its own pid namespace: its zygote, the twins of that, and its watcher.

    The kernel's list may lack one while another child ends, so it is read a few times.
    """
    found = set()
    for pid in {pid for _ in range(5) for pid in children(manager)}:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            if len(status.partition("NSpid:")[2].splitlines()[0].split()) == 2:
                found.add(pid)
    return found


def zygote_of(manager: int) -> int:
    """The first with a zygote's command line, by its number in the manager's namespace: the host's begin again.

    The kernel's list may lack it for a moment, while another child ends: a single look may find only the watcher.
    """
    numbers: dict[int, int] = {}
    looks = iter(range(5))

    def find() -> bool:
        for pid in zygotes_of(manager):
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"python3\0main.py\0"):
                    numbers[pid] = int(Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split()[1])
        return bool(numbers) and next(looks, None) is None

    until(find)
    return min(numbers, key=numbers.__getitem__)


class TestWho:
    """What two backends must have in common; a table, without a process."""

    @pytest.fixture
    def zygotes(self) -> SharedZygotes:
        return SharedZygotes()

    def test_the_same_is_shared(self, zygotes: SharedZygotes) -> None:
        assert zygotes.join(KEY, ()) is zygotes.join(ZygoteKey("/usr/bin/python3", "namespaces", "native"), ())

    @pytest.mark.parametrize(
        ("key", "prefix"),
        [
            (ZygoteKey("/usr/bin/python3.99", "namespaces", "native"), ()),
            (ZygoteKey("/usr/bin/python3", "none", "native"), ()),
            (ZygoteKey("/usr/bin/python3", "namespaces", "bubblewrap"), ()),
            (ZygoteKey("/usr/bin/python3", "namespaces", "native", has_worker=False), ()),
            (ZygoteKey("/usr/bin/python3", "namespaces", "native", with_site=True), ()),
            (ZygoteKey("/usr/bin/python3", "namespaces", "native", preload=("json",)), ()),
            (ZygoteKey("/usr/bin/python3", "namespaces", "native", keeps_spares=True), ()),
            (KEY, ("systemd-run", "--scope")),
        ],
    )
    def test_whatever_differs_is_another_one(
        self, zygotes: SharedZygotes, key: ZygoteKey, prefix: tuple[str, ...]
    ) -> None:
        assert zygotes.join(KEY, ()) is not zygotes.join(key, prefix)

    def test_one_that_has_each_runs_directory_in_its_memory_is_not_shared(self, zygotes: SharedZygotes) -> None:
        key = ZygoteKey("/usr/bin/python3", "landlock", "landlock")
        assert zygotes.join(key, ()) is not zygotes.join(key, ())

    @pytest.mark.parametrize("changed", ["getresuid", "getresgid", "getgroups"])
    def test_nor_does_a_program_that_became_another_user(
        self, zygotes: SharedZygotes, monkeypatch: pytest.MonkeyPatch, changed: str
    ) -> None:
        before = zygotes.join(KEY, ())
        monkeypatch.setattr(os, changed, lambda: (12345, 12345, 12345))
        assert zygotes.join(KEY, ()) is not before

    def test_nor_one_that_went_elsewhere(
        self, zygotes: SharedZygotes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A chroot or a new namespace; recognised by what is at these places."""
        before = zygotes.join(KEY, ())
        monkeypatch.setattr(module, "_INHERITED", (str(tmp_path), *module._INHERITED[1:]))
        assert zygotes.join(KEY, ()) is not before

    def test_the_last_one_ends_it(self, zygotes: SharedZygotes) -> None:
        share = zygotes.join(KEY, ())
        zygotes.join(KEY, ())
        assert (zygotes.leave(share), zygotes.leave(share)) == (False, True)
        assert zygotes.join(KEY, ()) is not share

    def test_what_was_never_closed_goes_with_its_owner(self, zygotes: SharedZygotes) -> None:
        zygotes.join(KEY, ())
        assert not zygotes._shares


class TestReplacing:
    class Double:
        """Stands for a zygote: no test needs ten thousand runs."""

        def __init__(self, *_: object) -> None:
            self.is_retired = self.is_closed = self.is_lost = False
            self.lives = True

        def is_alive(self) -> bool:
            return self.lives

        def has_ended(self) -> bool:
            return not self.lives

        def retire(self) -> None:
            self.is_retired = True

        def close(self) -> None:
            self.is_closed = True

    @pytest.fixture
    def share(self, monkeypatch: pytest.MonkeyPatch) -> ZygoteShare:
        monkeypatch.setattr(module, "ZygoteProcess", self.Double)
        monkeypatch.setattr(module, "_CELLS_PER_ZYGOTE", 3)
        return ZygoteShare(KEY, ())

    def test_after_so_many_runs_of_all_together(self, share: ZygoteShare) -> None:
        used = [share.zygote(Run(), -1) for _ in range(7)]
        assert [len(set(map(id, used[first : first + 3]))) for first in (0, 3)] == [1, 1]
        assert len(set(map(id, used))) == 3 and used[0].is_retired and not used[6].is_retired  # type: ignore[attr-defined]
        share.close()
        assert all(zygote.is_closed for zygote in used)  # type: ignore[attr-defined]

    def test_a_zygote_that_lost_a_cell_is_not_asked_again(self, share: ZygoteShare) -> None:
        """Though it was alive a moment ago."""
        first = share.zygote(Run(), -1)
        assert share.zygote(Run(), -1) is first
        first.is_lost = True
        assert share.zygote(Run(), -1) is not first

    def test_the_ended_ones_are_forgotten(self, share: ZygoteShare) -> None:
        first, *_ = [share.zygote(Run(), -1) for _ in range(4)]
        share.forget_ended()
        assert share._retired == [first]
        first.lives = False  # type: ignore[attr-defined]
        share.forget_ended()
        assert share._retired == []

    def test_one_that_is_no_longer_needed_is_ended(self, share: ZygoteShare, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[object] = []

        def start_and_be_left(*_: object) -> TestReplacing.Double:
            share.close()
            made.append(TestReplacing.Double())
            return made[0]  # type: ignore[return-value]

        monkeypatch.setattr(module, "ZygoteProcess", start_and_be_left)
        with pytest.raises(SandboxError, match="closed"):
            share.zygote(Run(), -1)
        assert made[0].is_closed  # type: ignore[attr-defined]

    def test_who_is_cancelled_while_it_starts_leaves_it_to_the_next(
        self, share: ZygoteShare, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def cancelled(*_: object) -> None:
            raise RunCancelled

        with monkeypatch.context() as patched:
            patched.setattr(module, "ZygoteProcess", cancelled)
            with pytest.raises(RunCancelled):
                share.zygote(Run(), -1)
        assert [share.zygote(Run(), -1)] == [member.zygote for member in share._members]


class TestManagers:
    """How many managers there are of one kind: a table of demands, without a process."""

    @pytest.fixture
    def share(self, monkeypatch: pytest.MonkeyPatch) -> ZygoteShare:
        monkeypatch.setattr(module, "ZygoteProcess", TestReplacing.Double)
        monkeypatch.setattr(module, "most_managers", lambda: 3)
        monkeypatch.setattr(module, "start_daemon", lambda work, name="": work())
        return ZygoteShare(KEY, ())

    @pytest.mark.parametrize(("demand", "managers"), [(0, 1), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (64, 3)])
    def test_there_are_as_many_as_the_runs_under_way_call_for(
        self, share: ZygoteShare, demand: int, managers: int
    ) -> None:
        for _ in range(10):
            share.zygote(Run(), -1, demand)
        assert len(share._members) == managers

    def test_runs_are_spread_over_all_of_them(self, share: ZygoteShare) -> None:
        for _ in range(30):
            share.zygote(Run(), -1, 64)
        assert min(member.cells for member in share._members) >= 8

    def test_a_dead_one_is_passed_over_and_replaced(self, share: ZygoteShare, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_ALIVE_SECONDS", -1.0)  # asks each time
        for _ in range(9):
            share.zygote(Run(), -1, 64)
        dead = share._members[1].zygote
        dead.lives = False  # type: ignore[attr-defined]
        assert dead not in [share.zygote(Run(), -1, 1) for _ in range(9)]

    def test_those_that_are_not_needed_go_one_by_one(self, share: ZygoteShare, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(9):
            share.zygote(Run(), -1, 64)
        for left in (2, 1, 1):
            share._last_crowded = time.monotonic() - 60
            share.forget_ended()
            assert len(share._members) == left
        assert all(not member.zygote.is_retired for member in share._members)  # type: ignore[attr-defined]

    def test_two_threads_that_see_the_same_surplus_end_one(
        self, share: ZygoteShare, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(9):
            share.zygote(Run(), -1, 64)
        lock = share._lock

        class Contended:
            """Another thread comes first."""

            def __enter__(self) -> None:
                share._lock = lock
                share.forget_ended()
                lock.__enter__()

            def __exit__(self, *_: object) -> None:
                lock.__exit__()

        share._last_crowded = time.monotonic() - 60
        monkeypatch.setattr(share, "_lock", Contended())
        share.forget_ended()
        assert len(share._members) == 2

    def test_a_machine_of_few_processors_has_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for processors, managers in ((1, 1), (2, 1), (7, 1), (8, 2), (16, 4), (64, 16)):
            monkeypatch.setattr(os, "sched_getaffinity", lambda pid, many=processors: set(range(many)))
            module.most_managers.cache_clear()
            assert module.most_managers() == managers
        monkeypatch.undo()
        module.most_managers.cache_clear()


def test_runs_go_on_where_one_of_several_managers_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its own runs with it, and no others."""
    share_no_zygotes(monkeypatch)
    monkeypatch.setattr(module, "most_managers", lambda: 2)
    monkeypatch.setattr(module, "_RUNS_PER_MANAGER", 1)
    with ProcessBackend(ProcessConfig(pool_size=0, pool_min=0, max_concurrency=8)) as backend:
        outcomes: list[object] = []

        def run_slowly() -> None:
            try:
                outcomes.append(backend.execute_blocking(SLOW).stdout)
            except SandboxError as error:
                outcomes.append(error.fault)

        assert answers(backend)
        for round_number in range(2):
            if round_number:  # the first round asks for a second manager, which may be ready long after it
                until(lambda: len(backend._launcher.pool.zygote_pids()) == 2)
            threads = [threading.Thread(target=run_slowly) for _ in range(4)]
            for thread in threads:
                thread.start()
            if round_number:
                time.sleep(0.3)
                os.kill(backend._launcher.pool.zygote_pids()[0], signal.SIGKILL)
            for thread in threads:
                thread.join()
        assert outcomes[:4] == ["slow\n"] * 4
        assert "slow\n" in outcomes[4:] and set(outcomes[4:]) <= {"slow\n", "host"}
        assert answers(backend)


@pytest.mark.parametrize(
    ("bind", "is_named"),
    [
        (Bind("/home/me/plans", "/home/me/plans", as_owner=True), True),
        (Bind("/srv/a", "/work", True, as_owner=True), False),
        (Bind("/srv/a", "/home/user", True, as_owner=True), False),
        (Bind("/srv/a", "/home/user/plans", as_owner=True), True),
        (Bind("/usr", "/usr"), False),
        (Bind("/tmp/me/node", "/tmp/me/node"), True),
        (Bind(f"{sys.prefix}/node", "/tmp/node"), False),
        (Bind(f"{sys.prefix}/data", f"{sys.prefix}/data", as_owner=True), True),
    ],
    ids=[
        "a caller's",
        "at a usual place",
        "at one that others' clients expect",
        "below it",
        "the system's",
        "a toolchain in scratch",
        "the program's own",
        "shown of it",
    ],
)
def test_which_names_keep_backends_apart(bind: Bind, is_named: bool) -> None:
    plan = LaunchPlan(binds=(bind,), scratch_dirs=(("/tmp", 0o1777), ("/work", 0o755)), cwd="/work")
    assert _has_private_paths(plan) is is_named


@pytest.mark.needs("linux", "user namespaces")
class TestTogether:
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        share_no_zygotes(monkeypatch)

    @pytest.fixture
    def two(self) -> Iterator[tuple[ProcessBackend, ProcessBackend]]:
        strict = SandboxPolicyBuilder().build()
        with ProcessBackend(ON_DEMAND) as first, ProcessBackend(ON_DEMAND, policy=strict) as second:
            assert answers(first) and answers(second) and first.zygote_pids == second.zygote_pids
            yield first, second

    @pytest.fixture
    def shown(self, tmp_path: Path) -> SandboxPolicy:
        return SandboxPolicyBuilder().allow_read(tmp_path).allow_process_spawn().build()

    async def test_one_is_closed_while_the_other_runs(self, two: tuple[ProcessBackend, ProcessBackend]) -> None:
        first, second = two
        (pid,) = first.zygote_pids
        slow = asyncio.create_task(second.execute(SLOW))
        await asyncio.sleep(0.2)
        await first.aclose()
        assert alive([pid]) and first.zygote_pids == []
        assert (await slow).stdout == "slow\n" and (await second.execute(REQUEST)).stdout == "42\n"
        await second.aclose()
        assert await asyncio.to_thread(eventually, lambda: not alive([pid]))

    async def test_each_has_a_queue_of_its_own(self) -> None:
        config = ProcessConfig(pool_size=0, pool_min=0, max_concurrency=1)
        async with ProcessBackend(config) as first, ProcessBackend(config) as second:
            assert [(await backend.execute(REQUEST)).stdout for backend in (first, second)] == ["42\n"] * 2
            ours, theirs = os.pipe()
            until_told = ExecRequest("python", "input()", 60)
            slow = asyncio.create_task(first.execute(until_told, stdin=ours))
            waiting = asyncio.create_task(first.execute(REQUEST))
            await asyncio.sleep(0)  # both have asked for a place
            asked = time.monotonic()
            assert (await second.execute(REQUEST)).stdout == "42\n"
            assert not slow.done() and not waiting.done()
            told = time.monotonic()
            os.write(theirs, b"\n")
            os.close(theirs)
            assert (await waiting).queued >= told - asked and (await slow).ok
            os.close(ours)

    def test_one_that_is_killed_is_replaced_for_all(self, two: tuple[ProcessBackend, ProcessBackend]) -> None:
        """A run in progress fails with fault "host"; the next run of each works."""
        first, second = two
        (pid,) = first.zygote_pids
        told: list[SandboxError] = []
        name = f"begun-{os.getpid()}"

        def run() -> None:
            with pytest.raises(SandboxError) as caught:
                second.execute_blocking(ExecRequest("python", naming(name) + "import time; time.sleep(60)", 60))
            told.append(caught.value)

        caller = threading.Thread(target=run)
        caller.start()
        until(lambda: is_process_named(name))  # one that has not begun would be started again elsewhere
        os.kill(pid, signal.SIGKILL)
        assert answers(first)
        caller.join()
        assert [(error.fault, error.retryable) for error in told] == [("host", True)]
        assert answers(second) and first.zygote_pids == second.zygote_pids != [pid]

    def test_one_whose_manager_has_guests_yet_is_replaced_as_well(self) -> None:
        """The manager outlives its zygote while a run goes on, makes nothing any more, and says so by letting go."""
        with ProcessBackend(ON_DEMAND) as backend:
            assert answers(backend)
            (manager,) = backend.zygote_pids
            ours, theirs = os.pipe()
            code = "import sys; print('up', flush=True); sys.stdin.read(); print('slow')"
            events = backend.stream_blocking(ExecRequest("python", code, PATIENCE), stdin=ours)
            assert next(events).data == b"up\n"  # type: ignore[union-attr]
            os.kill(zygote_of(manager), signal.SIGKILL)
            assert answers(backend) and alive([manager])
            os.close(theirs)
            *_, last = events
            os.close(ours)
            assert last.result.stdout == "up\nslow\n" and backend.zygote_pids != [manager]  # type: ignore[union-attr]
            assert eventually(lambda: not alive([manager]))

    def test_one_for_a_single_guest_is_over_with_it(self) -> None:
        """The zygote exits when the guest has started, the manager when it has reported. A second run gets another."""

        def zygote() -> list[str]:
            """The first process that was made in the manager's namespace has the number 2 there."""
            found = []
            for pid in children(manager):
                with suppress(OSError):  # it has just ended
                    found.append(Path(f"/proc/{pid}/status").read_text())
            return [status for status in found if status.partition("NSpid:")[2].split()[1] == "2"]

        start_ahead(base_executable())
        with ProcessBackend(ON_DEMAND) as backend:
            code = "import sys; print('up', flush=True); sys.stdin.read()"
            ours, theirs = os.pipe()
            events = backend.stream_blocking(ExecRequest("python", code, 30), stdin=ours)
            assert next(events).data == b"up\n"  # type: ignore[union-attr]
            (manager,) = backend.zygote_pids
            assert eventually(lambda: not zygote()) and alive([manager])
            os.close(theirs)
            assert [event.result.exit_code for event in events] == [0]  # type: ignore[union-attr]
            os.close(ours)
            assert eventually(lambda: not alive([manager])) and answers(backend)

    def test_a_fork_has_its_own(self, two: tuple[ProcessBackend, ProcessBackend]) -> None:
        first, second = two
        pids = first.zygote_pids

        def use() -> list[object]:
            used = [answers(first), answers(second), first.zygote_pids == second.zygote_pids != pids]
            first.close()
            return [*used, answers(second)]

        assert in_a_fork(use) == [True] * 4
        assert answers(first) and answers(second) and first.zygote_pids == second.zygote_pids == pids

    def test_a_twin_that_knows_a_callers_names_belongs_to_one_backend(
        self, two: tuple[ProcessBackend, ProcessBackend], shown: SandboxPolicy
    ) -> None:
        """Even where another shows the same. All have one manager, and a twin ends with its backend."""
        (manager,) = two[0].zygote_pids
        with ProcessBackend(ON_DEMAND, policy=shown) as first:
            assert answers(first) and first.zygote_pids == [manager]
            before = zygotes_of(manager)
            with ProcessBackend(ON_DEMAND, policy=shown) as second:
                assert answers(second) and answers(second) and second.zygote_pids == [manager]
                assert eventually(lambda: len(zygotes_of(manager) - before) == 1)
            assert eventually(lambda: zygotes_of(manager) == before)
            assert answers(first) and answers(two[0])
        assert eventually(lambda: len(before - zygotes_of(manager)) == 1) and answers(two[0])

    def test_a_twin_that_is_killed_is_replaced_for_its_backend(
        self, two: tuple[ProcessBackend, ProcessBackend], shown: SandboxPolicy
    ) -> None:
        (manager,) = two[0].zygote_pids
        with ProcessBackend(ON_DEMAND, policy=shown) as first, ProcessBackend(ON_DEMAND, policy=shown) as second:
            assert answers(first)
            before = zygotes_of(manager)
            assert answers(second)
            assert eventually(lambda: len(zygotes_of(manager) - before) == 1)
            os.kill(*(zygotes_of(manager) - before), signal.SIGKILL)
            assert answers(second) and answers(first) and answers(two[0])
            assert first.zygote_pids == second.zygote_pids == [manager]

    def test_many_cost_few_descriptors(self) -> None:
        """Sandboxes too, whose work directories all appear at the same place."""
        with ProcessBackend(ON_DEMAND) as first, Sandbox(config=ON_DEMAND) as box:
            assert answers(first) and box.run("print(1)").ok
            (pid,) = first.zygote_pids
            before = open_descriptors()
            others = [ProcessBackend(ON_DEMAND) for _ in range(20)]
            boxes = [Sandbox(config=ON_DEMAND) for _ in range(5)]
            assert all(answers(backend) and backend.zygote_pids == [pid] for backend in others)
            assert all(each.run("print(1)").ok for each in boxes)
            assert len(open_descriptors() - before) <= len(boxes) * 4
            for backend in others:
                backend.close()
            for each in boxes:
                each.destroy()
            assert answers(first)

    def test_an_interrupt_while_one_is_closed_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = open_descriptors()
        backend = ProcessBackend(ON_DEMAND)
        assert answers(backend)
        (pid,) = backend.zygote_pids
        leave = SharedZygotes.leave

        def interrupted(self: SharedZygotes, share: ZygoteShare) -> bool:
            signal.raise_signal(signal.SIGINT)
            return leave(self, share)

        monkeypatch.setattr(SharedZygotes, "leave", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.close()
        assert eventually(lambda: not alive([pid]) and open_descriptors() <= before)
