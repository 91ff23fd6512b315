"""KR-15: without permission no process and no exec, by no way; with it, the same cage for whatever runs."""

from __future__ import annotations

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest

from warmcell.policy.model import SandboxPolicy

_EXECUTE = """
    def elf():
        return open('/bin/true', 'rb').read()
    def in_memory():
        fd = os.memfd_create('x', 0)
        os.write(fd, elf())
        return fd
    def vector(*words):
        array = (ctypes.c_char_p * (len(words) + 1))(*words)
        return array
    argv, envp = vector(b'true'), vector()
    open('/tmp/program', 'wb').write(elf())
    os.chmod('/tmp/program', 0o755)
    open('/tmp/script', 'w').write('#!/bin/sh\\necho RAN')
    os.chmod('/tmp/script', 0o755)
    """


@pytest.mark.attack("KR-15")
@pytest.mark.claim("WC-KR-2")
@pytest.mark.parametrize(
    "action",
    [
        "os.execv('/bin/echo', ['echo', 'RAN'])",
        "os.execv('/nonexistent', ['x']) if not os.path.exists('/nonexistent') else None",
        "os.execv('/tmp/program', ['x'])",
        "os.execv('/tmp/script', ['x'])",
        "os.execv('/lib64/ld-linux-x86-64.so.2', ['ld', '/bin/echo', 'RAN'])",
        "os.execve(in_memory(), ['x'], {})",
        "syscall('execveat', in_memory(), b'', argv, envp, 0x1000)",
        "syscall('execve', b'/proc/self/exe', argv, envp)",
        "os.fork() or os._exit(3)",
        "os.posix_spawn('/bin/echo', ['echo', 'RAN'], {})",
        "syscall('clone', 17, 0, 0, 0, 0) or os._exit(3)",
        "syscall('clone', 0x4111, 0, 0, 0, 0) or os._exit(3)",
        "syscall('clone3', ctypes.create_string_buffer(88), 88)",
        "syscall('vfork') or os._exit(3)",
        "__import__('subprocess').run(['/bin/echo', 'RAN'])",
        "os.system('echo RAN') and (_ for _ in ()).throw(OSError(1, 'status'))",
        "__import__('multiprocessing').Process(target=print).start()",
        "__import__('pty').fork()",
    ],
)
def test_no_process_and_no_exec_without_permission(cage: Cage, action: str) -> None:
    body = _EXECUTE + f"\n    attempt('it', lambda: {action})\n    print('still here')\n"
    outcome = cage.run(guest(body), backend=cage.backend(SandboxPolicy()))
    assert "RAN" not in outcome.stdout.split("\n") and outcome.result.exit_code == 0
    assert outcome.stdout.endswith("still here\n")
    assert not outcome.report()["it"].startswith("ok:")


@pytest.mark.attack("KR-15")
@pytest.mark.claim("WC-KR-2")
def test_exec_from_a_thread_is_refused_too(cage: Cage) -> None:
    body = """
        import threading
        def run():
            attempt('exec', lambda: os.execv('/bin/echo', ['echo', 'RAN']))
            attempt('fork', os.fork)
        threads = [threading.Thread(target=run) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """
    outcome = cage.run(guest(body), backend=cage.backend(SandboxPolicy()))
    assert "RAN" not in outcome.stdout
    outcome.check_refused()
    assert {denial.kind for denial in outcome.result.denials} == {"process"}


@pytest.mark.attack("KR-15")
@pytest.mark.claim("WC-KR-2")
def test_a_shell_without_permission_has_its_builtins_only(cage: Cage) -> None:
    script = "echo builtin; (echo subshell); ls /; exec /bin/echo RAN"
    outcome = cage.run(script, "command", backend=cage.backend(SandboxPolicy()))
    assert "builtin" in outcome.stdout and "RAN" not in outcome.stdout and "subshell" not in outcome.stdout


@pytest.mark.attack("KR-15")
@pytest.mark.claim("WC-KR-2")
def test_threads_work_without_permission(cage: Cage) -> None:
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(lambda n: n * n, range(100))))
"""
    assert cage.run(code, backend=cage.backend(SandboxPolicy())).stdout == "328350\n"


@pytest.mark.attack("KR-15")
@pytest.mark.claim("WC-PR-3")
def test_what_runs_from_memory_is_caged_alike(cage: Cage) -> None:
    """With permission a program from a memfd, from the workspace or through the loader gains nothing."""
    body = """
        import subprocess
        fd = os.memfd_create('x', 0)
        os.write(fd, open('/bin/cat', 'rb').read())
        import shutil
        shutil.copy('/bin/cat', '/work/cat')
        for name, argv, extra in (('memfd', [f'/proc/self/fd/{fd}'], (fd,)), ('copy', ['/work/cat'], ())):
            try:
                done = subprocess.run([*argv, '/proc/self/status'], capture_output=True, text=True, pass_fds=extra)
            except OSError:  # where init makes the file behind a memfd, it is open for writing: nothing runs from it
                print(name, 'refused')
                continue
            for line in done.stdout.splitlines():
                if line.startswith(('Cap', 'NoNewPrivs', 'Seccomp:', 'Uid')):
                    print(name, *line.split())
        """
    lines = cage.run(guest(body)).stdout.splitlines()
    found = {tuple(line.split()) for line in lines}
    for name in ("memfd", "copy"):
        if (name, "refused") in found:
            continue
        assert (name, "CapEff:", "0" * 16) in found and (name, "Seccomp:", "2") in found
        assert (name, "NoNewPrivs:", "1") in found
