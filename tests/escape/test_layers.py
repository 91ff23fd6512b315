"""Every layer is load-bearing: with it an attack fails, without it the same attack gets through, or the cage refuses.

A layer is taken away in the plan, or in a copy of the cage in which one line is changed. The attacks are harmless.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.weakened import Weakened

from warmcell.cage.plan import Watch
from warmcell.core.errors import EnforcerFailed
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import SandboxPolicy


def _went_through(end: str) -> bool:
    return end.startswith("ok:")


@pytest.mark.claim("WC-KR-1")
def test_seccomp(weakened: Weakened) -> None:
    body = "attempt('trace', lambda: syscall('ptrace', 0, 0, 0, 0))"
    assert weakened.run(body) == {"trace": "EPERM"}
    weakened.without(seccomp=False)
    assert _went_through(weakened.run(body)["trace"])


@pytest.mark.claim("WC-NW-1")
def test_landlock_scopes_abstract_sockets(weakened: Weakened) -> None:
    """Where the host's network is allowed, nothing else stands before its abstract sockets."""
    name = f"\0warmcell-{os.urandom(8).hex()}"
    policy = SandboxPolicyBuilder().allow_network().allow_process_spawn().build()
    body = "import socket; attempt('connect', lambda: socket.socket(socket.AF_UNIX).connect(name))"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        assert weakened.run(body, policy, name=name) == {"connect": "EPERM"}
        weakened.without(landlock=())
        assert _went_through(weakened.run(body, policy, name=name)["connect"])


@pytest.mark.claim("WC-PR-2")
def test_landlock_keeps_the_guest_from_writing_to_proc(weakened: Weakened) -> None:
    body = "attempt('adjust', lambda: open('/proc/self/oom_score_adj', 'w').write('900'))"
    assert weakened.run(body) == {"adjust": "EACCES"}
    weakened.without(landlock=())
    assert _went_through(weakened.run(body)["adjust"])


_LOOK_INTO_INIT = (
    "attempt('environ', lambda: open('/proc/1/environ').read()); attempt('mem', lambda: open('/proc/1/mem', 'rb'))"
)


#: In the machine code, what init first does: prctl(PR_SET_DUMPABLE, 0), and a call that changes nothing.
_SHIELD = {
    "x86_64": ("b89d000000bf04000000", "b89d000000bf03000000"),
    "aarch64": ("e81480d2800080d2", "e81480d2600080d2"),
}[os.uname().machine]
_READS_CODE = 'code, start = read_code("sleeper", machine),'
_WEAKENS_CODE = (
    f'code, start = bytes.fromhex(read_code("sleeper", machine).hex().replace({_SHIELD[0]!r}, {_SHIELD[1]!r})),'
)


@pytest.mark.claim("WC-PR-1")
def test_a_sleeping_init_is_shielded_even_without_landlock(weakened: Weakened) -> None:
    weakened.without(landlock=())
    assert set(weakened.run(_LOOK_INTO_INIT).values()) == {"EACCES"}
    weakened.line("linux/sleeper.py", "os.fchmod(writable, 0o111)", "os.fchmod(writable, 0o555)")
    weakened.line("linux/sleeper.py", _READS_CODE, _WEAKENS_CODE)
    with pytest.raises(EnforcerFailed, match="init is dumpable"):
        weakened.run(_LOOK_INTO_INIT)
    weakened.skip_verification()
    assert all(map(_went_through, weakened.run(_LOOK_INTO_INIT).values()))


@pytest.mark.claim("WC-NW-1")
def test_the_network_namespace(weakened: Weakened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        body = "import socket; attempt('connect', lambda: socket.create_connection(('127.0.0.1', port), 2).close())"
        assert weakened.run(body, port=port) == {"connect": "ECONNREFUSED"}
        weakened.without(network="host")
        assert _went_through(weakened.run(body, port=port)["connect"])


@pytest.mark.claim("WC-RX-3")
def test_rlimits(weakened: Weakened) -> None:
    body = "attempt('open', lambda: [os.dup(0) for _ in range(100)] and None)"
    assert weakened.run(body, open_files=64) == {"open": "EMFILE"}
    weakened.without(rlimits=())
    assert _went_through(weakened.run(body, open_files=64)["open"])


@pytest.mark.claim("WC-RX-3")
def test_the_bound_on_private_places(weakened: Weakened) -> None:
    body = "attempt('fill', lambda: [open(f'/tmp/{n}', 'wb').write(bytes(4 << 20)) for n in range(8)])"
    assert weakened.run(body, disk_mb=16) == {"fill": "ENOSPC"}
    weakened.without(scratch_bytes=64 << 20)
    assert _went_through(weakened.run(body, disk_mb=16)["fill"])


@pytest.mark.claim("WC-RX-2")
def test_the_memory_limit(cage: Cage, weakened: Weakened) -> None:
    code = "x = [bytearray(b'x') * (1 << 20) for _ in range(200)]\n"
    assert cage.run(f"{code}import time; time.sleep(5)", memory_mb=100).status == "memory"
    weakened.without(watch=Watch())
    backend = cage.backend()
    backend._launcher._group_parent = None  # no control group either
    assert cage.run(f"{code}print('GOT AWAY')", memory_mb=100, backend=backend).stdout == "GOT AWAY\n"


@pytest.mark.claim("WC-RX-3")
def test_the_process_limit(cage: Cage, weakened: Weakened) -> None:
    code = """
import os, time
made = 0
try:
    for _ in range(60):
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""
    assert int(cage.run(code, processes=16).stdout) <= 16
    weakened.plan(lambda plan: plan._replace(rlimits=tuple(item for item in plan.rlimits if item[0] != "nproc")))
    backend = cage.backend()
    backend._launcher._group_parent = None
    assert int(cage.run(code, processes=16, backend=backend).stdout) == 60


@pytest.mark.claim("WC-RX-3")
def test_namespace_quotas(weakened: Weakened) -> None:
    body = "attempt('inotify', lambda: [syscall('inotify_init1', 0) for _ in range(48)] and None)"
    assert weakened.run(body) == {"inotify": "EMFILE"}
    weakened.line("guest_entry/recipe.py", "            namespaces.set_quotas(calls)", "            pass")
    assert _went_through(weakened.run(body)["inotify"])


@pytest.mark.claim("WC-KR-2")
def test_the_spawn_rule(weakened: Weakened) -> None:
    body = "attempt('fork', lambda: os.fork() or os._exit(0))"
    assert weakened.run(body, SandboxPolicy()) == {"fork": "EPERM"}
    weakened.without(allow_spawn=True)
    assert _went_through(weakened.run(body, SandboxPolicy())["fork"])


@pytest.mark.claim("WC-PR-3")
@pytest.mark.claim("WC-KR-3")
def test_capabilities(weakened: Weakened) -> None:
    """Kept, they are found and refused. Unseen, they would let the guest open files that it may not."""
    body = """
        os.close(os.open('/tmp/closed', os.O_CREAT, 0))
        attempt('open', lambda: os.close(os.open('/tmp/closed', os.O_RDONLY)))
        """
    assert weakened.run(body) == {"open": "EACCES"}
    weakened.line("guest_entry/recipe.py", "            capabilities.drop_all(calls)\n", "            pass\n")
    with pytest.raises(EnforcerFailed, match=r"verify.*CapEff"):
        weakened.run(body)
    weakened.skip_verification()
    assert _went_through(weakened.run(body)["open"])


@pytest.mark.claim("WC-LK-2")
@pytest.mark.claim("WC-KR-3")
def test_descriptors(weakened: Weakened) -> None:
    """Kept, they are found and refused. Unseen, the guest would hold the channels of its own supervisor."""
    body = """
        def held():
            found = [name for name in os.listdir('/proc/self/fd') if int(name) > 3]
            if not found:
                raise OSError(9, 'none')
            return found
        attempt('held', held)
        """
    assert weakened.run(body) == {"held": "EBADF"}
    weakened.line("guest_entry/recipe.py", "        fds.close_gaps(calls, _GAPS)", "        pass")
    with pytest.raises(EnforcerFailed, match=r"verify.*descriptors instead"):
        weakened.run(body)
    weakened.skip_verification()
    assert _went_through(weakened.run(body)["held"])


@pytest.mark.claim("WC-FS-3")
@pytest.mark.claim("WC-KR-3")
def test_read_only_mounts(weakened: Weakened, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    policy = SandboxPolicyBuilder().allow_read(data).allow_process_spawn().build()
    body = "attempt('write', lambda: open(data + '/made', 'w').close())"
    assert weakened.run(body, policy, data=str(data)) == {"write": "EROFS"}
    weakened.line("linux/mounts.py", "        attributes |= _MOUNT_ATTR_RDONLY", "        attributes |= 0")
    with pytest.raises(EnforcerFailed, match=r"verify.*is writable"):
        weakened.run(body, policy, data=str(data))
    weakened.skip_verification()
    weakened.without(landlock=())
    assert _went_through(weakened.run(body, policy, data=str(data))["write"])
    assert (data / "made").exists()


_STEPS = [
    ("ipc", "linux/namespaces.py", "CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC", "CLONE_NEWNS | CLONE_NEWPID"),
    ("pid", "linux/namespaces.py", "CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC", "CLONE_NEWNS | CLONE_NEWIPC"),
    ("uts", "linux/namespaces.py", "| CLONE_NEWIPC | CLONE_NEWUTS", "| CLONE_NEWIPC"),
    ("net", "linux/namespaces.py", 'flags if network == "host" else flags | CLONE_NEWNET', "flags"),
    ("mount", "linux/namespaces.py", "OF_INIT = CLONE_NEWUSER | CLONE_NEWNS | ", "OF_INIT = CLONE_NEWUSER | "),
    (
        "cgroup",
        "guest_entry/recipe.py",
        '    calls.call("unshare", namespaces.CLONE_NEWCGROUP',
        '    calls.call("unshare", 0',
    ),
    ("no_new_privs", "linux/capabilities.py", 'calls.call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)', "pass"),
    ("identity", "linux/namespaces.py", 'calls.call("setresuid", uid, uid, uid)', "pass"),
    ("old root", "linux/mounts.py", 'calls.call("umount2", b".", MNT_DETACH)', "pass"),
    ("root writable", "linux/mounts.py", "_SEALED = _MOUNT_ATTR_RDONLY | ", "_SEALED = "),
    ("seccomp", "guest_entry/recipe.py", "        if plan.seccomp:\n", "        if False:\n"),
]


@pytest.mark.claim("WC-KR-3")
@pytest.mark.parametrize("shows_host", [True, False], ids=["host path", "no host path"])
@pytest.mark.parametrize(("file", "old", "new"), [pytest.param(*change, id=name) for name, *change in _STEPS])
def test_a_missing_step_is_noticed_before_the_guest_starts(
    weakened: Weakened, tmp_path: Path, file: str, old: str, new: str, shows_host: bool
) -> None:
    """Whatever was left out, no line of the guest's code runs."""
    policy = SandboxPolicyBuilder().allow_read(tmp_path).allow_process_spawn().build() if shows_host else None
    if "setresuid" in old and os.geteuid():
        # An ordinary user's guest has the right user from the map alone; the step is for root.
        assert weakened.run("attempt('ids', os.getresuid)") == {"ids": "ok:(1000, 1000, 1000)"}
        return
    weakened.line(file, old, new)
    with pytest.raises(EnforcerFailed):
        weakened.run("attempt('ran', lambda: None)", policy)
