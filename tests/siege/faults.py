"""Every step of making, leasing, running and ending a cell fails once: `python -m tests.siege.faults SCENE [KIND ...]`.

A process of its own, because what fails are the functions of its `os` and `socket`. First a run in which nothing fails
is written down call by call, in every process that takes part. Then each of these calls fails in turn, once, and after
each it is checked: which error the caller got, whether the next run works, and what is left. One line of JSON for each.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil  # noqa: F401  # looks at the functions of `os` when it is imported
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.contract.processes import alive, descendants
from tests.siege.injector import KILL, KILL_INIT, ROLES, Injector, Orders

import warmcell.pool.manager_process
from warmcell import ExecRequest, ProcessBackend, SandboxError, SandboxPolicy, SandboxPolicyBuilder
from warmcell.languages.config import ProcessConfig
from warmcell.runner.cgroup_parent import group_parent

KINDS = {name: getattr(errno, name) for name in ("EMFILE", "ENOMEM", "EAGAIN", "EINTR")}
KINDS |= {"KILL": KILL, "KILL_INIT": KILL_INIT}
#: What a call can fail with. Memory can be short in all of them; Python itself repeats what a signal interrupted.
_CAN_FAIL_WITH = {
    "EMFILE": "pipe2 open dup dup2 socketpair recvmsg recvmsg_into listdir scandir pidfd_open posix_spawn syscall".split(),
    "EAGAIN": "fork posix_spawn sendmsg recvmsg recvmsg_into send recv sendall read write syscall".split(),
    "EINTR": ["syscall"],
}
_HANGS_SECONDS = 60
_SETTLES_SECONDS = 30.0
#: What a run leaves has ended when nothing has changed for so long.
_RESTS_SECONDS = 1.0


@dataclass(frozen=True)
class Fault:
    """The `turn`th call at a site of one process fails in one way."""

    role: str
    site: str
    turn: int
    kind: str


@dataclass(frozen=True)
class Belongings:
    """What there is of ours on the host. Descriptors and mounts of the manager and its children are counted by role."""

    descriptors: int
    processes: int
    below: tuple[tuple[str, int], ...]
    temporary: tuple[str, ...]
    groups: int


class Scene:
    """One backend, made again for each fault (`cold`) or used for all (`warm`)."""

    def __init__(
        self, policy: SandboxPolicy | None, config: ProcessConfig, enforcer: str | None, is_cold: bool
    ) -> None:
        self._policy, self._config, self._enforcer = policy, config, enforcer
        self.is_cold = is_cold
        self._backend: ProcessBackend | None = None
        self._managers: list[int] = []

    def run(self) -> str:
        """Runs once; returns "ran", "host: ...", or a description of a wrong outcome."""
        try:
            return self._run()
        except SandboxError as error:
            return f"{error.fault}: {type(error).__name__}: {error}"
        except BaseException as error:
            return f"untyped: {type(error).__name__}: {error}"

    def _run(self) -> str:
        backend = self._backend or ProcessBackend(self._config, self._enforcer, self._policy)
        try:
            result = backend.execute_blocking(ExecRequest("python", "print('done')", 30, b"input"))  # type: ignore[arg-type]
            self._await_spare(backend)
        finally:
            if self.is_cold:
                backend.close()
        if (result.stdout, result.exit_code) == ("done\n", 0):
            return "ran"
        return f"result: {result.exit_code} {result.signal} {result.stdout!r} {result.stderr!r}"

    def _await_spare(self, backend: ProcessBackend) -> None:
        """Where cells wait, the next one is made when this run is over, and that may fail too."""
        until = time.monotonic() + (0.2 if self._config.pool_size else 0.0)
        while time.monotonic() < until and not backend.ready_cells:
            time.sleep(0.005)

    def begin(self) -> None:
        if not self.is_cold:
            self._backend = ProcessBackend(self._config, self._enforcer, self._policy)
        for _ in range(2):
            assert self.run() == "ran", self.run()

    def run_again(self) -> str:
        """After a fault; twice in another manager, which prepares with its second cell what all later ones share."""
        assert self._backend is not None
        end = self.run()
        managers, self._managers = self._managers, self._backend.zygote_pids
        return self.run() if end == "ran" and self._managers != managers else end

    def end(self) -> None:
        if self._backend is not None:
            self._backend.close()


def belongings() -> Belongings:
    processes = alive(descendants())
    parent = group_parent()
    groups = [entry for base in set(parent.directories.values()) for entry in os.scandir(base)] if parent else []
    return Belongings(
        descriptors=len(os.listdir("/proc/self/fd")),
        processes=len(processes),
        below=tuple(sorted(_inside(pid) for pid in processes)),
        temporary=tuple(sorted(os.listdir(tempfile.gettempdir()))),
        groups=sum(entry.name.startswith("warmcell-") for entry in groups),
    )


#: Namespaces that a manager keeps for later cells, within bounds.
_KEPT = ("user:", "net:")


def _inside(pid: int) -> tuple[str, int]:
    """What it has open, by kind, and how many mounts it sees. Of user and network namespaces a manager keeps some, and
    one pid namespace, its own, from the first guest on whose processes it had to look for.
    """
    try:
        leads_to = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        mounts = len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    except OSError:
        return ("gone", 0)
    kinds = sorted(name.partition(":")[0] for name in leads_to if not name.startswith(_KEPT))
    if "pid" in kinds:
        kinds.remove("pid")
    return (" ".join(kinds), mounts)


def await_leftovers(before: Belongings) -> Belongings:
    """What is left when it equals `before`, or after the time for that is over."""
    until = time.monotonic() + _SETTLES_SECONDS
    while (now := belongings()) != before and time.monotonic() < until:
        time.sleep(0.02)
    return now


def await_rest() -> Belongings:
    """What there is when what ends with a run has ended."""
    now, since = belongings(), time.monotonic()
    until = since + _SETTLES_SECONDS
    while time.monotonic() < min(until, since + _RESTS_SECONDS):
        time.sleep(0.05)
        before, now = now, belongings()
        if now != before:
            since = time.monotonic()
    return now


def write_down(scene: Scene, orders: Orders, roles: list[str], kinds: list[str]) -> list[Fault]:
    """Every call of a run that works, in each way that it is to fail."""
    orders.count()
    assert scene.run() == "ran"
    orders.stop()
    return [
        Fault(role, site, turn, kind)
        for role in roles
        for site, times in Counter(orders.calls(role)).items()
        for turn in range(times)
        for kind in kinds
        if site.split()[0] in _CAN_FAIL_WITH.get(kind, site)
        if kind != "KILL_INIT" or role == "manager"
        if kind != "KILL" or role != "supervisor"
    ]


def each_place_once(faults: list[Fault]) -> list[Fault]:
    """The first call of each line; of the ways to fail one for each, in turn."""
    places: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        if fault.turn == 0:
            places.setdefault((fault.role, fault.site), []).append(fault)
    return [found[index % len(found)] for index, found in enumerate(places.values())]


def places_of_next_cell(orders: Orders, directory: Path) -> set[tuple[str, str]]:
    directory.mkdir()
    warm = scenes(directory)["warm"]()
    warm.begin()
    found = write_down(warm, orders, list(ROLES), ["ENOMEM"])
    warm.end()
    return {(fault.role, fault.site) for fault in found}


def attempt(scene: Scene, orders: Orders, fault: Fault, before: Belongings) -> dict[str, Any]:
    orders.fail(fault.role, fault.site, fault.turn, KINDS[fault.kind])
    with report_hang(fault):
        first = scene.run()
    orders.stop()
    has_failed = orders.has_failed
    if fault.kind == "KILL_INIT":
        time.sleep(0.1)  # until the cell that it hit is dead: another kill in the next run's face proves nothing
    with report_hang(fault):
        again = "ran" if scene.is_cold else scene.run_again()  # another one has nothing in common with it
    left = await_leftovers(before)
    found: dict[str, Any] = {"fault": asdict(fault), "failed": has_failed, "told": first, "again": again}
    return found if left == before else {**found, "left": asdict(left), "before": asdict(before)}


@contextmanager
def report_hang(fault: Fault) -> Iterator[None]:
    def tell() -> None:
        import faulthandler

        print(f"{fault} hangs", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(3)

    timer = threading.Timer(_HANGS_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def prepare_managers(page: str, is_plain: bool) -> None:
    """Every manager from now on lets its calls be failed."""
    injector = Path(__file__).with_name("injector.py").read_text().replace("from __future__ import annotations", "")
    boot = warmcell.pool.manager_process.BOOT
    last = boot.splitlines()[-1]
    armed = f"{injector}\ninstall_in_manager({page!r}, {is_plain})\n{last}"
    warmcell.pool.manager_process.BOOT = "from __future__ import annotations\n" + boot.removesuffix(last) + armed


def scenes(directory: Path) -> dict[str, Callable[[], Scene]]:
    for name in ("seen", "own"):
        (directory / name).mkdir()
    policy = SandboxPolicyBuilder().allow_read(directory / "seen").allow_read_write(directory / "own").build()
    on_demand = ProcessConfig(pool_size=0, pool_min=0)
    return {
        "cold": lambda: Scene(policy, on_demand, "native", True),
        "warm": lambda: Scene(policy, on_demand, "native", False),
        "pooled": lambda: Scene(None, ProcessConfig(pool_size=1, pool_min=1), "native", False),
        "landlock": lambda: Scene(None, on_demand, "landlock", False),
        "bare": lambda: Scene(None, on_demand, None, False),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scene")
    parser.add_argument("--roles", default="supervisor,manager,zygote,watcher,keeper,guest,init")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--plain", action="store_true", help="lists of calls are gone through call by call")
    parser.add_argument("--each-place-once", action="store_true")
    parser.add_argument("--new-places-only", action="store_true", help="not those that the next cell passes too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        tempfile.tempdir = directory
        page = Path(directory, "orders")
        page.touch()
        orders = Orders(str(page))
        prepare_managers(str(page), options.plain)
        Path(directory, "paths").mkdir()
        scene = scenes(Path(directory, "paths"))[options.scene]()
        scene.begin()
        Injector(orders, "supervisor", ["/warmcell/"]).install()
        faults = write_down(scene, orders, options.roles.split(","), options.kinds.split(","))
        if options.new_places_only:
            passed = places_of_next_cell(orders, Path(directory, "again"))
            faults = [fault for fault in faults if (fault.role, fault.site) not in passed]
        if options.each_place_once:
            faults = each_place_once(faults)
        before = await_rest()
        for fault in faults:
            print(json.dumps(attempt(scene, orders, fault, before)), flush=True)
            before = belongings()  # what one fault left is not the next one's
        orders.stop()
        scene.end()
    signal.alarm(0)


if __name__ == "__main__":
    main()
