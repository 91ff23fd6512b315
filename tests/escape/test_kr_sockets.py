"""KR-11, KR-12: no exotic socket family, no terminal of the caller."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest

import warmcell


@pytest.mark.attack("KR-11")
@pytest.mark.claim("WC-KR-1")
def test_exotic_families_are_refused(cage: Cage) -> None:
    body = """
        ordinary = {1, 2, 10, 16}
        for family in [f for f in range(0, 64) if f not in ordinary] + [255, 65535, -1]:
            for kind in (1, 2, 3, 4, 5, 10):
                attempt(f'{family} {kind}', lambda: syscall('socket', family, kind, 0))
        """
    report = cage.run(guest(body)).check_refused()
    assert set(report.values()) <= {"EPERM", "EAFNOSUPPORT"}


@pytest.mark.attack("KR-11")
@pytest.mark.claim("WC-KR-1")
def test_raw_packet_and_netlink_sockets_are_refused(cage: Cage) -> None:
    body = """
        for flags in (0, 0x800, 0x80000, 0x80800):
            for family in (2, 10):
                for protocol in (0, 1, 6, 17, 58, 255):
                    attempt(f'raw {family} {protocol} {flags}', lambda: syscall('socket', family, 3 | flags, protocol))
                attempt(f'packet {family} {flags}', lambda: syscall('socket', family, 10 | flags, 0x0300))
            for protocol in range(1, 32):
                for kind in (2, 3):
                    attempt(f'netlink {protocol} {kind} {flags}', lambda: syscall('socket', 16, kind | flags, protocol))
        pair = ctypes.create_string_buffer(8)
        for family in (2, 10, 16, 17, 38, 40):
            attempt(f'pair {family}', lambda: syscall('socketpair', family, 1, 0, pair))
        """
    report = cage.run(guest(body)).check_refused()
    assert set(report.values()) <= {"EPERM", "EAFNOSUPPORT"}


@pytest.mark.attack("KR-11")
@pytest.mark.claim("WC-KR-1")
def test_exotic_protocols_of_ordinary_families_are_refused(cage: Cage) -> None:
    """SCTP, DCCP, MPTCP, L2TP, SMC: kernel code that no guest needs, often loaded on demand."""
    body = """
        for family in (2, 10):
            for kind, protocol in ((1, 132), (5, 132), (6, 33), (1, 262), (2, 115), (1, 256), (2, 136), (4, 0)):
                attempt(f'{family} {kind} {protocol}', lambda: syscall('socket', family, kind, protocol))
        """
    cage.run(guest(body)).check_refused()


@pytest.mark.attack("KR-11")
def test_ordinary_sockets_still_work(cage: Cage) -> None:
    body = """
        import socket
        server = socket.create_server(('127.0.0.1', 0))
        client = socket.create_connection(server.getsockname())
        server.accept()[0].sendall(b'tcp works')
        print(client.recv(99).decode())
        a, b = socket.socketpair()
        a.sendall(b'pair works')
        print(b.recv(99).decode())
        print([name for _, name in socket.if_nameindex()])
        """
    assert cage.run(guest(body)).stdout == "tcp works\npair works\n['lo']\n"


_ON_A_TERMINAL = """
    import fcntl, os, sys, termios
    sys.path.insert(0, {source!r})
    import warmcell
    os.setsid()
    terminal = os.open(os.ttyname(0), os.O_RDWR)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 1)
    code = '''
    import ctypes, errno, fcntl, os
    def attempt(name, action):
        try:
            action()
            print(name, "ok")
        except OSError as error:
            print(name, errno.errorcode[error.errno])
    for fd in (0, 1, 2):
        print("tty", fd, os.isatty(fd))
        attempt(f"sti {{fd}}", lambda: fcntl.ioctl(fd, 0x5412, b"X"))
        attempt(f"linux {{fd}}", lambda: fcntl.ioctl(fd, 0x541C, b"X"))
        attempt(f"sctty {{fd}}", lambda: fcntl.ioctl(fd, 0x540E, 1))
    attempt("open", lambda: os.open("/dev/tty", os.O_RDWR))
    attempt("console", lambda: os.open("/dev/console", os.O_RDWR))
    attempt("ptmx", lambda: os.open("/dev/ptmx", os.O_RDWR))
    print("end")
    '''
    import textwrap
    result = warmcell.run(textwrap.dedent(code), timeout=10)
    open({out!r}, "w").write(result.stdout + result.stderr)
    """


@pytest.mark.attack("KR-12")
@pytest.mark.claim("WC-KR-4")
def test_the_callers_terminal_cannot_be_typed_into(cage: Cage, tmp_path: object) -> None:
    """The caller runs on a terminal of its own; nothing may be pushed into its input queue."""
    master, slave = pty.openpty()
    source, out = os.path.dirname(os.path.dirname(warmcell.__file__)), f"{tmp_path}/out"
    script = textwrap.dedent(_ON_A_TERMINAL).format(source=source, out=out)
    try:
        subprocess.run([sys.executable, "-c", script], stdin=slave, stdout=slave, stderr=slave, timeout=30, check=True)
        os.set_blocking(slave, False)
        with pytest.raises(BlockingIOError):
            os.read(slave, 100)
    finally:
        os.close(master)
        os.close(slave)
    with open(out, encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert lines[-1] == "end" and not [line for line in lines if line.endswith(("True", " ok"))]


@pytest.mark.attack("KR-12")
@pytest.mark.claim("WC-KR-4")
def test_a_terminal_of_its_own_cannot_be_injected_either(cage: Cage) -> None:
    body = """
        import fcntl
        attempt('ptmx', lambda: os.open('/dev/ptmx', os.O_RDWR))
        attempt('tty', lambda: os.open('/dev/tty', os.O_RDWR))
        for request in (0x5412, 0x541C):
            attempt(f'ioctl {request:x}', lambda: fcntl.ioctl(1, request, b'x'))
        """
    assert set(cage.run(guest(body)).check_refused().values()) <= {"EPERM", "ENOENT", "ENXIO", "ENOTTY"}
