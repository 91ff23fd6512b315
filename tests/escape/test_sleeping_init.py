"""Cells whose init only sleeps: what supervises the guest then, and that nothing depends on its good will."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest
from tests.helpers import eventually, is_process_named, naming, share_no_zygotes, until

import warmcell.backends.process.cell_template
from warmcell.backends.process.backend import ProcessBackend
from warmcell.cage.linux.processes import descendants
from warmcell.cage.plan import Bind, LaunchPlan, Watch
from warmcell.core.errors import EnforcerFailed, ExecutionFailed, SandboxError
from warmcell.core.types import ExecRequest
from warmcell.languages.config import ProcessConfig
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.compile import compile_plan


@pytest.fixture(autouse=True)
def plan_without_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cgroup every init keeps watch; here none does, so that ordinary users' sleepers are looked at too."""
    _compile_as(monkeypatch, lambda plan: plan)


def _compile_as(monkeypatch: pytest.MonkeyPatch, change: Callable[[LaunchPlan], LaunchPlan]) -> None:
    monkeypatch.setattr(
        warmcell.backends.process.cell_template,
        "compile_plan",
        lambda *args: change(compile_plan(*args)._replace(watch=Watch())),
    )


def _in_background(backend: ProcessBackend, code: str, timeout: float = 8) -> tuple[threading.Thread, list[object]]:
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(backend.execute_blocking(ExecRequest("python", code, timeout)))  # type: ignore[arg-type]
        except SandboxError as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ends


def _kernel_tells_how_others_ended() -> bool:
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1].split("-")[0])) >= (6, 15)


def _count_mount_namespaces(process: int) -> int:
    held = set()
    for name in os.listdir(f"/proc/{process}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            held.add(os.readlink(f"/proc/{process}/fd/{name}"))
    return len({path for path in held if path.startswith("mnt:")})


@pytest.mark.parametrize("callers_path", [False, True])
def test_mounts_of_a_cell_are_gone_a_moment_after_its_run(tmp_path: Path, callers_path: bool) -> None:
    """Those that no other process can see; where a path of the caller's is among them, nothing is left to be done later."""
    policy = SandboxPolicyBuilder().allow_read(tmp_path).build() if callers_path else None
    with ProcessBackend(ProcessConfig(pool_size=0), policy=policy) as backend:
        for _ in range(2):
            backend.execute_blocking(ExecRequest("python", "1", 10))  # type: ignore[arg-type]
        (manager,) = backend.zygote_pids
        own = 3  # its own, its workshop and, for the second cell, that of new inits
        assert eventually(lambda: _count_mount_namespaces(manager) == own)
        backend.execute_blocking(ExecRequest("python", "1", 10))  # type: ignore[arg-type]
        if callers_path:
            assert _count_mount_namespaces(manager) == own
        assert eventually(lambda: _count_mount_namespaces(manager) == own)


@pytest.mark.claim("WC-PR-1")
def test_it_has_no_privileges_and_one_descriptor(cage: Cage) -> None:
    backend = cage.backend()
    thread, _ = _in_background(backend, "import time; time.sleep(4)")
    inits: list[Path] = []

    def find_inits() -> bool:
        zygote = backend.zygote_pids[0] if backend.zygote_pids else 0
        inits[:] = [path for path in Path("/proc").glob("[0-9]*") if _is_sleeper_of(path, zygote)]
        return bool(inits)

    assert eventually(find_inits)
    status = dict(line.split(":\t", 1) for line in (inits[0] / "status").read_text().splitlines() if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1" and status["NSpid"].split()[-1] == "1"
    if os.geteuid() == 0:
        assert status["Uid"].split()[0] != "0" and os.listdir(inits[0] / "fd") == ["0"]
    thread.join()


def _is_sleeper_of(path: Path, zygote: int) -> bool:
    try:
        fields = (path / "stat").read_text()
        return (path / "cmdline").read_bytes() == b"init\0" and int(fields.rpartition(")")[2].split()[1]) == zygote
    except OSError:
        return False


@pytest.mark.claim("WC-RX-5")
def test_what_the_guest_leaves_behind_ends_with_it(cage: Cage) -> None:
    name = f"left-{os.getpid()}"
    code = f"""
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {naming(name).strip()}
        os.write(writer, b"x")
        time.sleep(300)
    os._exit(0)
os.wait()
os.read(reader, 1)
print("there")
"""
    assert cage.run(code, backend=cage.backend()).stdout == "there\n"
    assert not is_process_named(name)


@pytest.mark.claim("WC-KR-1")
def test_a_guest_that_is_refused_without_end_holds_up_nobody(cage: Cage) -> None:
    """The zygote answers for all of its cells, one call of each in turn."""
    storm = "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.syscall(101, 0, 0, 0, 0)"
    backend = cage.backend()
    stormy = [_in_background(backend, storm)[0] for _ in range(2)]
    time.sleep(0.3)
    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(lambda _: cage.run("print(1)", backend=backend).stdout, range(4)))
    assert ends == ["1\n"] * 4
    for thread in stormy:
        thread.join()


@pytest.mark.claim("WC-RX-5")
def test_a_run_whose_manager_is_killed_fails_as_the_hosts_and_the_next_works(
    cage: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_no_zygotes(monkeypatch)
    backend = cage.backend()
    assert backend.execute_blocking(ExecRequest("python", "print(0)", 30)).ok  # type: ignore[arg-type]
    name = f"begun-{os.getpid()}"
    thread, ends = _in_background(backend, naming(name) + "import time; time.sleep(60); print('there')", 60)
    until(lambda: is_process_named(name))
    (manager,) = backend.zygote_pids
    below = list(descendants(manager))
    os.kill(manager, signal.SIGKILL)
    again = backend.execute_blocking(ExecRequest("python", "print('another')", 30))  # type: ignore[arg-type]
    assert again.stdout == "another\n" and backend.zygote_pids != [manager]
    thread.join()
    (end,) = ends
    assert isinstance(end, ExecutionFailed) and (end.fault, end.retryable) == ("host", True)
    assert below and eventually(lambda: not [pid for pid in below if Path(f"/proc/{pid}").exists()])


@pytest.mark.claim("WC-RX-5")
def test_waiting_cells_of_a_dead_zygote_are_not_used(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    share_no_zygotes(monkeypatch)
    backend = cage.backend(config=None)
    assert backend.execute_blocking(ExecRequest("python", "print(0)", 30)).ok  # type: ignore[arg-type]
    assert eventually(lambda: backend.ready_cells > 0)
    (zygote,) = backend.zygote_pids
    os.kill(zygote, signal.SIGKILL)
    assert eventually(lambda: not backend.zygote_pids)
    for number in range(6):
        result = backend.execute_blocking(ExecRequest("python", f"print({number})", 30))  # type: ignore[arg-type]
        assert result.stdout == f"{number}\n"


@pytest.mark.claim("WC-FS-1")
def test_what_is_replaced_on_the_host_is_replaced_in_new_cells(
    cage: Cage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Roots are copied from one that was built before: it must not show files that are no longer there."""
    shown = tmp_path / "shown"
    shown.write_text("old")
    shown.chmod(0o644)
    bind = Bind(str(shown), "/etc/shown")
    _compile_as(monkeypatch, lambda plan: _with_bind(plan, bind))
    backend = cage.backend()
    look = "print(open('/etc/shown').read())"
    assert cage.run(look, backend=backend).stdout == "old\n"
    assert cage.run(look, backend=backend).stdout == "old\n"
    (tmp_path / "other").write_text("new")
    (tmp_path / "other").chmod(0o644)
    (tmp_path / "other").rename(shown)
    time.sleep(1.1)  # it is looked for once a second
    assert cage.run(look, backend=backend).stdout == "new\n"
    shown.unlink()
    time.sleep(1.1)
    with pytest.raises(EnforcerFailed, match="open allowed path"):
        cage.run(look, backend=backend)


def _with_bind(plan: LaunchPlan, bind: Bind) -> LaunchPlan:
    return plan._replace(binds=(*plan.binds, bind), landlock=(*plan.landlock, (bind.target, False)))


@pytest.mark.claim("WC-FS-2")
def test_roots_that_cells_share_carry_nothing_from_one_to_the_next(cage: Cage) -> None:
    body = """
for place in ("/", "/etc", "/usr", "/home", "/root", "/run", "/dev", "/var"):
    attempt("make in " + place, lambda: open(place + "/left", "w"))
    attempt("mode of " + place, lambda: os.chmod(place, 0o777))
    attempt("attribute of " + place, lambda: os.setxattr(place, "user.left", b"x"))
    attempt("time of " + place, lambda: os.utime(place, (1, 1)))
attempt("append", lambda: open("/etc/passwd", "a"))
"""
    cage.run(guest(body), backend=cage.backend()).check_refused()


@pytest.mark.claim("WC-RX-5")
def test_orphans_are_reaped_though_init_sleeps(cage: Cage) -> None:
    """More of them than processes are allowed: each must be gone when the next one comes."""
    code = """
import os, time
def fork():
    while True:  # until the test's timeout, if nothing is reaped
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(0.01)
def count():
    return sum(name.isdigit() for name in os.listdir("/proc"))
for number in range(60):
    if fork() == 0:
        fork()
        os._exit(0)
    os.wait()
while count() > 2:  # zombies count
    time.sleep(0.01)
print(count())
"""
    assert cage.run(code, backend=cage.backend(), processes=16).stdout == "2\n"
