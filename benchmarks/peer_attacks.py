"""What a guest tries in benchmarks/peers.py: the same Python programs for every peer.

Each attack touches only what `Canaries` made, is finite, and succeeds in a bare interpreter, which shows that it works.
A guest prints READY when it runs and REACHED when it got there; what happened on the host is checked from outside.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

MEMORY_MB, DISK_MB, PROCESSES, SECONDS = 256, 64, 64, 2
#: Pyodide's guests reach their host through the module `js`, so the attacks try that too.
_PRELUDE = """
import os, sys
try:
    import js
except ImportError:
    js = None
def attempt(*ways):
    for way in ways:
        try:
            if way():
                print("REACHED", flush=True)
                break
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
print("READY", flush=True)
"""
_READ = """
attempt(lambda: {secret!r} in open({path!r}).read(),
        lambda: {secret!r} in js.process.getBuiltinModule("fs").readFileSync({path!r}, "utf8"),
        lambda: {secret!r} in js.Deno.readTextFileSync({path!r}))
"""
_WRITE = """
attempt(lambda: open({target!r}, "w").write({secret!r}),
        lambda: js.process.getBuiltinModule("fs").writeFileSync({target!r}, {secret!r}),
        lambda: js.Deno.writeTextFileSync({target!r}, {secret!r}))
"""
_ENVIRONMENT = """
attempt(lambda: os.environ.get({variable!r}) == {secret!r},
        lambda: getattr(js.process.env, {variable!r}) == {secret!r},
        lambda: js.Deno.env.get({variable!r}) == {secret!r})
"""
_DESCRIPTORS = """
def read(number):
    try:
        return os.pread(number, 100, 0).decode() == {secret!r}
    except OSError:
        return False
attempt(lambda: any(map(read, range(3, 200))))
"""
_CONNECT = """
import socket
def connect():
    with socket.socket({family}, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect({address!r})
        return client.recv(100).decode() == {secret!r}
attempt(connect)
"""
_SIGNAL = """
attempt(lambda: os.kill({pid}, 15) is None, lambda: js.process.kill({pid}), lambda: js.Deno.kill({pid}, "SIGTERM"))
"""
_SEE = """
attempt(lambda: {secret!r} in open("/proc/{pid}/cmdline").read(),
        lambda: {secret!r} in js.process.getBuiltinModule("fs").readFileSync("/proc/{pid}/cmdline", "utf8"))
"""
_NAMESPACE = """
import ctypes
attempt(lambda: ctypes.CDLL(None).unshare(0x10000000) == 0)
"""
_MEMORY = f"""
attempt(lambda: len(b"x" * ({3 * MEMORY_MB} << 20)))
"""
_FORKS = f"""
import signal, time
def fork_all():
    children = []
    try:
        for _ in range({2 * PROCESSES}):
            child = os.fork()
            if child == 0:
                time.sleep(30)
                os._exit(0)
            children.append(child)
        return True
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
attempt(fork_all)
"""
_TIME = f"""
import time
def spin():
    end = time.monotonic() + {4 * SECONDS}
    while time.monotonic() < end:
        pass
    return True
attempt(spin)
"""
_DISK = f"""
import errno, tempfile
def fill():
    for directory in (None, "."):
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                return sum(file.write(bytes(1 << 20)) for _ in range({4 * DISK_MB}))
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.ENOENT, errno.EACCES):  # those: try the next directory
                raise
attempt(fill)
"""
_BACKGROUND = """
import time
def leave():
    if os.fork():
        return True
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.closerange(3, 256)
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(20)  # {secret}"])
attempt(leave)
"""


class Canaries:
    """What the guests try to reach: files, a variable, a descriptor, sockets and a process, all made here."""

    def __init__(self, home: Path) -> None:
        self.secret = secrets.token_hex(16)
        self.variable = "CANARY_OF_THE_BENCHMARK"
        self.path, self.target = home / "canary.txt", home / "target.txt"
        self.path.write_text(self.secret)
        os.environ[self.variable] = self.secret
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.write(self.secret.encode())
        self._file.flush()
        self.descriptor = self._file.fileno()
        os.set_inheritable(self.descriptor, True)
        self._servers = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        self._servers[1].bind(f"\0{self.secret}")
        self._servers[1].listen()
        self.port = self._servers[0].getsockname()[1]
        for server in self._servers:
            threading.Thread(target=self._serve, args=(server,), daemon=True).start()
        self._process: subprocess.Popen[bytes] | None = None

    def _serve(self, server: socket.socket) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                client, _ = server.accept()
                with suppress(OSError), client:
                    client.sendall(self.secret.encode())

    def process(self) -> int:
        """The pid of a process that guests try to see and to end; its name is the secret."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen([self.secret, "3600"], executable="/bin/sleep")
        return self._process.pid

    def program(self, text: str) -> str:
        values = {"secret": self.secret, "variable": self.variable, "pid": self.process()}
        return _PRELUDE + text.format(path=str(self.path), target=str(self.target), **values)

    def connect(self, family: str, address: object) -> str:
        return _PRELUDE + _CONNECT.format(family=family, address=address, secret=self.secret)

    def was_written(self) -> bool:
        found = self.target.exists() and self.target.read_text() == self.secret
        self.target.unlink(missing_ok=True)
        return found

    def was_ended(self) -> bool:
        if self._process is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        return self._process.poll() is not None

    def was_left(self) -> bool:
        """Whether a process that the guest left behind still runs; it is ended then."""
        time.sleep(1)
        found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and self._is_ours(path)]
        for pid in found:
            with suppress(OSError):
                os.kill(pid, 9)
        return bool(found)

    def _is_ours(self, process: Path) -> bool:
        try:
            return f"# {self.secret}".encode() in (process / "cmdline").read_bytes()
        except OSError:
            return False

    def __enter__(self) -> Canaries:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for server in self._servers:
            server.close()
        self._file.close()
        os.environ.pop(self.variable, None)
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Attack(NamedTuple):
    """`check`: what happened on the host; without one, what the guest printed counts."""

    name: str
    program: str
    check: Callable[[], bool] | None = None
    #: A peer that ends a run over a limit may lose what it printed.
    is_limit: bool = False


def attacks(canaries: Canaries) -> list[Attack]:
    of = canaries.program
    return [
        Attack("reads a file in the home", of(_READ)),
        Attack("writes a file in the home", of(_WRITE), canaries.was_written),
        Attack("reads the environment", of(_ENVIRONMENT)),
        Attack("uses an inherited descriptor", of(_DESCRIPTORS)),
        Attack("connects to loopback", canaries.connect("socket.AF_INET", ("127.0.0.1", canaries.port))),
        Attack("connects to an abstract socket", canaries.connect("socket.AF_UNIX", f"\0{canaries.secret}")),
        Attack("sees a process", of(_SEE)),
        Attack("signals a process", of(_SIGNAL), canaries.was_ended),
        Attack("makes a user namespace", of(_NAMESPACE)),
        Attack(f"uses {3 * MEMORY_MB} of {MEMORY_MB} MB", of(_MEMORY), is_limit=True),
        Attack(f"starts {2 * PROCESSES} of {PROCESSES} processes", of(_FORKS), is_limit=True),
        Attack(f"writes {4 * DISK_MB} of {DISK_MB} MB", of(_DISK), is_limit=True),
        Attack(f"spins {4 * SECONDS} of {SECONDS} s", of(_TIME), is_limit=True),
        Attack("leaves a process behind", of(_BACKGROUND), canaries.was_left),
    ]
