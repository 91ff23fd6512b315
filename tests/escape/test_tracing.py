"""Debuggers, where the policy allows them: the guest's own processes can be traced, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest
from tests.image_roots import make_root

from warmcell import EnforcerUnavailable, PolicyViolation, Sandbox, SandboxPolicy, SandboxPolicyBuilder
from warmcell.images import Image, ImageStore

TRACING = SandboxPolicyBuilder().allow_tracing().build()

#: A child asks to be traced and stops itself; its parent sees the stop, reads its memory and lets it go.
_TRACE_A_CHILD = """
    import signal
    libc = ctypes.CDLL(None)
    word = ctypes.create_string_buffer(b'a word!', 8)
    child = os.fork()
    if child == 0:
        syscall('ptrace', 0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(7)
    stopped = os.WIFSTOPPED(os.waitpid(child, 0)[1])
    libc.ptrace.restype, libc.ptrace.argtypes = ctypes.c_long, [ctypes.c_long] * 4
    read = libc.ptrace(2, child, ctypes.addressof(word), 0).to_bytes(8, 'little')
    libc.ptrace(17, child, 0, 0)
    print(stopped, read, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """


@pytest.mark.attack("KR-04")
@pytest.mark.parametrize("user", [None, "root"])
def test_a_child_can_be_traced(image: Image, cage: Cage, user: str | None) -> None:
    backend = cage.backend(TRACING, image=image, user=user)
    outcome = cage.run(guest(_TRACE_A_CHILD), backend=backend)
    assert outcome.stdout == "True b'a word!\\x00' 7\n", outcome.result.stderr
    assert outcome.result.denials == []


@pytest.mark.attack("KR-04")
@pytest.mark.claim("WC-KR-1")
@pytest.mark.parametrize("high", [0, 1 << 32])
def test_no_process_of_ours_can_be_traced_or_becomes_a_tracer(cage: Cage, high: int) -> None:
    """The parent of the first process is the manager: it must not become the tracer of a guest."""
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        body = """
            word = ctypes.create_string_buffer(8)
            vector = (ctypes.c_long * 2)(ctypes.addressof(word), 8)
            attempt('be traced', lambda: syscall('ptrace', high, 0, 0, 0))
            for pid in (1, victim, supervisor):
                for request in (16, 0x4206, 2, 0x420d):
                    attempt(f'ptrace {request} {pid}', lambda: syscall('ptrace', request | high, pid, 0, 0))
                for name in ('process_vm_readv', 'process_vm_writev'):
                    attempt(f'{name} {pid}', lambda: syscall(name, pid, vector, 1, vector, 1, 0))
                attempt(f'mem {pid}', lambda: open(f'/proc/{pid}/mem', 'rb'))
            """
        code = guest(body, victim=victim.pid, supervisor=os.getpid(), high=high)
        report = cage.run(code, backend=cage.backend(TRACING)).check_refused()
        assert set(report.values()) <= {"EPERM", "ESRCH", "EIO", "EACCES", "ENOENT"}
        assert victim.poll() is None
    finally:
        victim.communicate(b"\n")


def test_an_orphan_cannot_make_init_its_tracer(cage: Cage) -> None:
    body = """
        reader, writer = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                while os.getppid() != 1:
                    pass
                try:
                    os.write(writer, b'%d' % syscall('ptrace', 0, 0, 0, 0))
                except OSError as error:
                    os.write(writer, b'errno %d' % error.errno)
            os._exit(0)
        os.wait()
        os.close(writer)
        print(os.read(reader, 100))
        """
    assert cage.run(guest(body), backend=cage.backend(TRACING)).stdout == "b'errno 1'\n"


@pytest.mark.attack("KR-04")
def test_the_agent_of_a_live_cage_cannot_be_traced() -> None:
    """It is pid 2 there, and the parent of what it starts."""
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
assert os.getppid() == 2
for request, pid in ((0, 0), (16, 2), (0x4206, 2), (16, 1)):
    print(libc.ptrace(request, pid, 0, 0), ctypes.get_errno())
"""
    with Sandbox(policy=TRACING, live=True) as sandbox:
        assert sandbox.spawn(["python3", "-c", code]).wait(60).stdout == "-1 1\n" * 4
        assert sandbox.sh("echo still here").stdout == "still here\n"


@pytest.mark.needs("strace")
def test_strace_in_an_image(cage: Cage, tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", "sh", "strace", "cat")
    image = ImageStore(tmp_path / "store").import_(root, "strace:1")
    command = "strace -f -o /tmp/calls -e trace=openat sh -c 'cat /etc/os-release'; cat /tmp/calls"
    outcome = cage.run(command, "command", backend=cage.backend(TRACING, image=image))
    assert outcome.stdout.startswith('NAME="Cell Linux"\n'), outcome.result.stderr
    assert '"/etc/os-release", O_RDONLY' in outcome.stdout
    refused = cage.run(command, "command", backend=cage.backend(image=image)).result
    assert [(denial.what, denial.rule) for denial in refused.denials] == [("ptrace", "allowTracing")]


def test_what_cannot_hold_is_refused(cage: Cage) -> None:
    with pytest.raises(PolicyViolation, match="without new processes"):
        SandboxPolicy(allow_tracing=True)
    for enforcer in ("landlock", None):
        with pytest.raises(EnforcerUnavailable, match="traces"):
            cage.run("print(1)", backend=cage.backend(TRACING, enforcer=enforcer))
