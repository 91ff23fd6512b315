"""What must hold on the emulated kernel, by name. Each check runs guests and looks at them from outside."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.qemu.guest import payloads

from warmcell.backends.process.backend import ProcessBackend
from warmcell.cage.linux.processes import descendants
from warmcell.core.errors import EnforcerUnavailable, ExecutionFailed, ExecutionTimeout, MemoryExceeded, SandboxError
from warmcell.core.types import ExecRequest, ExecResult, Language, Limits
from warmcell.languages.config import ProcessConfig
from warmcell.policy.model import SandboxPolicy
from warmcell.runner import cgroup_parent
from warmcell.runner.cgroups import GroupLimits

ON_DEMAND = ProcessConfig(python_path="/usr/bin/python3", pool_size=0, pool_min=0)
PATIENCE = 90.0  # by the machine's own clock, which a busy host does not hurry
MEMORY_MB = 40
CGROUPS = Path("/sys/fs/cgroup")


@dataclass
class Bench:
    """What the checks of one setting share. `mechanism` is what must keep the limits here."""

    mechanism: str
    group: str
    backend: ProcessBackend

    @property
    def has_cgroup(self) -> bool:
        return self.mechanism != "supervisor"

    def run(self, code: str, timeout: float = PATIENCE, **limits: object) -> ExecResult:
        return execute(self.backend, code, timeout, **limits)


Check = Callable[[Bench], None]


def execute(backend: ProcessBackend, code: str, timeout: float = PATIENCE, **limits: object) -> ExecResult:
    return backend.execute_blocking(ExecRequest(Language.PYTHON, code, timeout, limits=Limits(**limits)))  # type: ignore[arg-type]


def hello(bench: Bench) -> None:
    result = bench.run("print('hello')")
    assert (result.stdout, result.exit_code) == ("hello\n", 0), result


def names_its_mechanism(bench: Bench) -> None:
    enforced = bench.run("pass").enforced
    assert enforced.memory == bench.mechanism, enforced
    assert enforced.isolation_class == "process+sandbox", enforced


def uses_a_group_of_its_own(bench: Bench) -> None:
    """The kernel's own word for where the guest is: the root of its namespace, made by us, below our home."""
    result = bench.run("print(open('/proc/self/cgroup').read())")
    assert result.stdout.strip() == "0::/", result.stdout


def bomb(kind: str) -> Check:
    def check(bench: Bench) -> None:
        try:
            result = bench.run(payloads.MEMORY_BOMBS[kind], memory_mb=MEMORY_MB, disk_mb=128)
        except MemoryExceeded as exceeded:
            assert exceeded.result is not None
            assert "survived" not in exceeded.result.stdout
            assert any(denial.kind == "memory" for denial in exceeded.result.denials), exceeded.result.denials
            return
        raise AssertionError(f"no MemoryExceeded: {result}")

    return check


def processes_are_bounded(bench: Bench) -> None:
    result = bench.run(payloads.FORKS, processes=20)
    made = int(result.stdout.split()[-1])
    assert 5 <= made < 20, result
    if bench.has_cgroup:
        assert any(denial.kind == "processes" for denial in result.denials), result.denials


def cpu_share_is_bounded(bench: Bench) -> None:
    result = bench.run(payloads.BURN.format(seconds=2), cpus=0.4)
    assert 0.1 < result.usage.cpu_time / result.usage.wall_time < 0.65, result.usage


def cpu_time_is_bounded(bench: Bench) -> None:
    started = time.monotonic()
    try:
        result = bench.run(payloads.BURN.format(seconds=300), cpu_seconds=2)
    except ExecutionTimeout as late:
        assert late.clock == "cpu" and time.monotonic() - started < 60, late
        return
    raise AssertionError(f"no ExecutionTimeout: {result}")


def timeout_kills_the_tree(bench: Bench) -> None:
    bench.run("pass")
    before = set(descendants(os.getpid()))
    try:
        result = bench.run(payloads.TREE, timeout=6)
    except ExecutionTimeout:
        _assert_only(before)
        return
    raise AssertionError(f"no ExecutionTimeout: {result}")


def _assert_only(processes: set[int]) -> None:
    """The dead count until the zygote has reaped them, which it does a moment after they are gone."""
    deadline = time.monotonic() + 60
    while (left := set(descendants(os.getpid())) - processes) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, left


def usage_is_plausible(bench: Bench) -> None:
    code = (
        "x = bytearray(40 << 20)\nimport time\nuntil = time.process_time() + 1\nwhile time.process_time() < until: pass"
    )
    usage = bench.run(code).usage
    assert 40 << 20 <= usage.peak_memory_bytes < 90 << 20, usage
    assert 1 <= usage.cpu_time < 10, usage


def attacks_fail(bench: Bench) -> None:
    result = _attack(bench.backend)
    assert {denial.what for denial in result.denials if denial.kind == "syscall"} >= {"mount", "unshare"}, result


def _attack(backend: ProcessBackend) -> ExecResult:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        name = f"warmcell-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        port, owned, readable = server.getsockname()[1], _make_file("/tmp"), _make_file("/usr/share/everybody")
        attacks = payloads.ATTACKS.format(port=port, abstract=name, pid=os.getpid(), owned=owned, readable=readable)
        result = execute(backend, attacks)
    lines = result.stdout.splitlines()
    assert len(lines) == payloads.ATTACKS.count("\nattempt("), result
    assert not [line for line in lines if "went through" in line], lines
    assert [Path(path).read_text() for path in (owned, readable)] == ["precious", "precious"]
    return result


def _make_file(directory: str) -> str:
    """A file of the user that runs Warmcell: only the cage protects it from a guest with the same user."""
    path = Path(directory, f"owned-{os.getpid()}")
    path.write_text("precious")
    return str(path)


def denials_are_reported(bench: Bench) -> None:
    with ProcessBackend(ON_DEMAND, "native", SandboxPolicy(allow_process_spawn=False)) as backend:
        spawned, unshared = execute(backend, payloads.SPAWN), execute(backend, payloads.UNSHARE)
    assert "refused" in spawned.stdout, spawned
    assert [denial for denial in spawned.denials if denial.kind == "process"], spawned
    assert ("syscall", "unshare") in {(denial.kind, denial.what) for denial in unshared.denials}, unshared


def waiting_cells_work(bench: Bench) -> None:
    """A pooled cell joined its group before it had anything to do."""
    with ProcessBackend(ProcessConfig(python_path="/usr/bin/python3", pool_size=1), "native") as backend:
        for number in range(3):
            assert execute(backend, f"print({number})").stdout == f"{number}\n"


def landlock_alone_is_refused(bench: Bench) -> None:
    """This kernel's Landlock cannot stop truncation, so without a mount namespace it would not hold."""
    try:
        with ProcessBackend(ON_DEMAND, "landlock") as backend:
            execute(backend, "pass")
    except EnforcerUnavailable as error:
        assert "truncation" in error.message
        return
    raise AssertionError("the landlock class was available")


def bare_class_is_held_by_groups(bench: Bench) -> None:
    """Without namespaces a tree is ended by its group alone."""
    with ProcessBackend(ON_DEMAND, None) as backend:
        result = execute(backend, "print('hello')")
        assert result.stdout == "hello\n", result
        before = set(descendants(os.getpid()))
        try:
            execute(backend, payloads.TREE, timeout=6)
            raise AssertionError("no ExecutionTimeout")
        except ExecutionTimeout:
            _assert_only(before)


def cpu_share_is_refused(bench: Bench) -> None:
    """What nothing on this host can enforce is an error, not a smaller promise."""
    try:
        result = bench.run("pass", cpus=0.5)
    except SandboxError:
        return
    raise AssertionError(f"a cpu share was accepted that nothing enforces: {result.enforced}")


def nothing_is_left(bench: Bench) -> None:
    """No group of a cell, and no process but the manager of the backend that is still open, its zygote and watcher."""
    home = cgroup_parent.group_parent()
    directories = [Path(path) for path in home.directories.values()] if home else []
    left = [str(path) for directory in directories for path in directory.iterdir() if path.is_dir()]
    assert not [path for path in left if "warmcell-" in os.path.basename(path)], left
    deadline = time.monotonic() + 10
    most = 4 if home and home.prefix else 3  # and the process that keeps a scope alive
    while len(found := list(descendants(os.getpid()))) > most and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(found) <= most, found


def lies_in_our_own_group(bench: Bench) -> None:
    """So that a limit on the service that Warmcell is part of holds for its guests as well."""
    home = _home()
    assert home.is_relative_to(CGROUPS / bench.group), home
    bench.run("pass")


def limit_on_our_service_holds(bench: Bench) -> None:
    """Guests count towards the service's memory; one killed for that has not exceeded its own limit."""
    service = CGROUPS / bench.group
    used = int((service / "memory.current").read_text())
    (service / "memory.max").write_text(str(used + (48 << 20)))
    try:
        result = bench.run(payloads.MEMORY_BOMBS["one process"], memory_mb=512)
    except ExecutionFailed:
        return
    finally:
        (service / "memory.max").write_text("max")
    raise AssertionError(f"not killed: {result}")


def keeps_its_controllers(bench: Bench) -> None:
    """A service manager that tidies up would otherwise take the limits off running guests."""
    try:
        (_home().parent / "cgroup.subtree_control").write_text("-memory")
    except OSError as error:
        assert error.errno == errno.EBUSY, error
        return
    raise AssertionError("the memory controller could be taken away")


def sweeps_after_the_killed(bench: Bench) -> None:
    """A supervisor that dies by SIGKILL cannot remove its groups; the next one does."""
    base = _home().parent
    left = _in_a_fork(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert (base / left).is_dir()
    _in_a_fork(lambda: None)
    assert not (base / left).exists(), left


def _in_a_fork(end: Callable[[], None]) -> str:
    """The name of the home that a fork of this process made for itself; it ends without cleaning up."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = cgroup_parent.find()
        group = found.make_group("warmcell-x", GroupLimits(32 << 20, 8)) if found else None
        os.write(writing, next(iter(group._paths.values())).encode() if group else b"")
        end()
        os._exit(0)
    os.close(writing)
    with open(reading) as told:
        path = told.read()
    os.waitpid(pid, 0)
    return os.path.basename(os.path.dirname(path))


def _home() -> Path:
    home = cgroup_parent.group_parent()
    assert home is not None
    return Path(home.directories[""])
