"""PR: /proc shows the guest's own world and changes nothing of the host's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest


@pytest.mark.attack("PR-01")
@pytest.mark.claim("WC-LK-1")
@pytest.mark.claim("WC-PR-1")
def test_no_environment_of_anybody_can_be_read(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMCELL_CANARY", cage.canary.secret)
    body = """
        for pid in [*filter(str.isdigit, os.listdir('/proc')), 'self', 'thread-self', str(os.getppid())]:
            for name in ('environ', 'cmdline', 'maps', 'mem', 'auxv', 'stack', 'syscall', 'io'):
                attempt(f'{pid} {name}', lambda: open(f'/proc/{pid}/{name}', 'rb').read(4096))
            for name in ('exe', 'cwd', 'root', 'fd/0', 'fd/3', 'ns/mnt', 'map_files'):
                attempt(f'{pid} {name}', lambda: os.readlink(f'/proc/{pid}/{name}'))
        """
    outcome = cage.run(guest(body))
    assert cage.canary.secret not in outcome.everything
    parents = {name: end for name, end in outcome.report().items() if name.startswith("1 ")}
    assert [name for name, end in parents.items() if end.startswith("ok:")] == ["1 cmdline"]
    assert "warmcell" not in parents["1 cmdline"]


@pytest.mark.attack("PR-01")
@pytest.mark.claim("WC-LK-1")
def test_children_find_no_environment_either(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMCELL_CANARY", cage.canary.secret)
    script = 'env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; sh -c \'tr "\\0" "\\n" < /proc/self/environ\''
    assert cage.canary.secret not in cage.run(script, "command").everything


@pytest.mark.attack("PR-02")
@pytest.mark.claim("WC-PR-1")
def test_only_own_processes_exist(cage: Cage) -> None:
    victim = subprocess.Popen(["sleep", "30"])
    try:
        body = """
            import signal
            print('pids', sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))
            for pid in (victim, supervisor, 4194303):
                attempt(f'kill {pid}', lambda: os.kill(pid, 0))
                attempt(f'pidfd {pid}', lambda: os.pidfd_open(pid))
                attempt(f'getpgid {pid}', lambda: os.getpgid(pid))
                attempt(f'getsid {pid}', lambda: os.getsid(pid))
                attempt(f'stat {pid}', lambda: os.stat(f'/proc/{pid}'))
                attempt(f'affinity {pid}', lambda: os.sched_getaffinity(pid))
                attempt(f'priority {pid}', lambda: os.getpriority(os.PRIO_PROCESS, pid))
            """
        outcome = cage.run(guest(body, victim=victim.pid, supervisor=os.getpid()))
        pids = outcome.stdout.splitlines()[0]
        assert pids in ("pids [1, 2]", "pids [1, 3]", "pids [1, 2, 3]")
        report = outcome.report()
        # A small number may exist in both worlds; then it is the guest's own process that it found.
        foreign = [name for name, end in report.items() if end.startswith("ok:") and int(name.split()[1]) > 9]
        assert foreign == []
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


@pytest.mark.attack("PR-03")
@pytest.mark.claim("WC-PR-2")
def test_no_kernel_setting_can_be_changed(cage: Cage) -> None:
    settings = (
        "sys/kernel/core_pattern sys/kernel/modprobe sys/kernel/hotplug sys/kernel/sysrq sys/kernel/hostname "
        "sys/kernel/domainname sys/vm/overcommit_memory sys/vm/drop_caches sys/vm/panic_on_oom sys/fs/suid_dumpable "
        "sys/fs/protected_symlinks sys/fs/mqueue/msg_max sys/kernel/msgmax sys/kernel/shmmax sys/kernel/ns_last_pid "
        "sys/kernel/yama/ptrace_scope sys/kernel/unprivileged_bpf_disabled sys/user/max_user_namespaces "
        "sys/user/max_inotify_instances sys/net/ipv4/ip_forward sys/net/ipv4/ping_group_range sys/net/core/somaxconn "
        "sys/net/unix/max_dgram_qlen sys/kernel/random/boot_id sysrq-trigger sys/kernel/randomize_va_space "
        "self/oom_score_adj self/oom_adj self/loginuid self/uid_map self/gid_map self/setgroups self/timens_offsets "
        "self/mem self/clear_refs self/attr/current self/attr/exec self/coredump_filter self/autogroup self/sched "
        "1/oom_score_adj 1/mem 1/comm irq/default_smp_affinity mtrr sys/abi/vsyscall32 sys/dev/tty/legacy_tiocsti"
    ).split()
    existing = [name for name in settings if name.startswith("sys/") and Path("/proc", name).exists()]
    before = {name: _value(name) for name in existing}
    body = """
        for name in settings:
            for mode in ('w', 'r+', 'a'):
                attempt(f'{mode} {name}', lambda: open('/proc/' + name, mode).write('-1000'))
        for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/self/oom_score_adj'):
            attempt('by fd ' + path, lambda: os.write(os.open(path, os.O_WRONLY), b'x'))
            attempt('chmod ' + path, lambda: os.chmod(path, 0o777))
        """
    cage.run(guest(body, settings=settings)).check_refused()
    assert {name: _value(name) for name in existing} == before


def _value(name: str) -> str:
    # These change by themselves, or with what the test itself does.
    if name in ("sys/kernel/ns_last_pid", "sys/vm/drop_caches"):
        return ""
    try:
        return Path("/proc", name).read_text()
    except OSError:
        return ""


@pytest.mark.attack("PR-03")
@pytest.mark.claim("WC-PR-2")
def test_there_is_no_sysfs_and_no_cgroup_to_write(cage: Cage) -> None:
    body = """
        for path in ('/sys/kernel', '/sys/fs/cgroup', '/sys/fs/cgroup/memory', '/sys/kernel/debug', '/sys/firmware'):
            attempt('list ' + path, lambda: os.listdir(path))
        attempt('join', lambda: open('/sys/fs/cgroup/cgroup.procs', 'w').write('0'))
        attempt('mount', lambda: syscall('mount', b'sysfs', b'/tmp', b'sysfs', 0, None))
        """
    cage.run(guest(body)).check_refused()


@pytest.mark.attack("PR-03")
@pytest.mark.claim("WC-PR-2")
def test_a_crash_starts_no_handler_of_the_host(cage: Cage) -> None:
    """Where core_pattern names a program, the kernel starts it outside, as root, unless the limit is exactly 1."""
    code = "import os, resource; print(resource.getrlimit(resource.RLIMIT_CORE), flush=True); os.abort()"
    outcome = cage.run(code)
    assert outcome.stdout == "(1, 1)\n" and outcome.result.signal == 6


@pytest.mark.attack("KR-04")
@pytest.mark.claim("WC-PR-1")
def test_no_page_is_shared_with_the_processes_that_guests_are_forks_of(cage: Cage) -> None:
    """What a guest wrote to such a page, the zygote and the manager would read, or execute, outside."""
    body = """
        lines = open('/proc/self/maps').read().splitlines()
        for line in lines:
            place, access, _, _, inode, *name = line.split(None, 5)
            if access.endswith('s') and not line.endswith('/inside/hits'):  # where tests/inside counts lines
                start, end = (int(number, 16) for number in place.split('-'))
                attempt(line, lambda: libc.mprotect(ctypes.c_void_p(start), end - start, 3) and
                        (_ for _ in ()).throw(OSError(ctypes.get_errno(), '')))
        attempt('looked', lambda: (_ for _ in ()).throw(OSError(1, '')))
        """
    cage.run(guest(body)).check_refused()
