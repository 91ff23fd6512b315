"""Where the programs of a soak run besides cages of their own: live cages, cells of sessions, the doors of a server.

Each place belongs to one caller. A benign step raises `Wrong` if its answer is not the right one; a hostile step returns
how it ended, and the next step finds the place usable.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from warmcell import Limits, PtySize, Sandbox, Session
from warmcell.core.errors import SandboxError, SessionEnded

LIMITS = Limits(memory_mb=192, processes=64, disk_mb=64, output_bytes=1 << 20, open_files=256)
_ENDLESS_SECONDS = 1.0
_STARTING_SECONDS = 60.0
#: With pauses of 0.2 s, for a server that is busy.
_MOST_ATTEMPTS = 300
#: Does nothing unless it is in a cage, whose user namespace has a single id.
_STOP_ALL = """python3 -c "
import os, signal
if open('/proc/self/uid_map').read().split()[2:] == ['1']:
    for pid in [int(name) for name in os.listdir('/proc') if name.isdigit()]:
        if pid not in (1, os.getpid(), os.getppid()):
            try: os.kill(pid, signal.SIGSTOP)
            except OSError: pass
" """
_HOSTILE_COMMANDS = {
    "stop all": _STOP_ALL,
    "background": "for n in $(seq 40); do sleep 20 & done; echo left",
    "endless": "while :; do :; done",
    "flood": "head -c 8000000 /dev/zero | tr '\\0' x",
    "memory": "python3 -c \"kept = [bytearray(b'm' * (8 << 20)) for _ in range(60)]\"",
    "terminal": "stty -echo; head -c 2000000 /dev/zero | tr '\\0' y",
}
_HOSTILE_CELLS = {
    "endless": "while True:\n    pass",
    "deaf": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass",
    "kill itself": "import os\nos.kill(os.getpid(), 9)",
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "memory": "kept = [bytearray(b'm' * (8 << 20)) for _ in range(60)]",
    "no output": "import sys, os\ndel sys.stdout, sys.stderr\nos.closerange(0, 3)",
    "flood": "for _ in range(400):\n    print('x' * 65536)",
    "threads": "import threading, time\nfor _ in range(40):\n    threading.Thread(target=time.sleep, args=(20,)).start()",
}


class Wrong(AssertionError):
    """An answer that is not the right one."""


class LiveCage:
    """Commands in a live sandbox. After a hostile one there is another sandbox: it did what it could to its own."""

    hostile = tuple(_HOSTILE_COMMANDS)

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None

    def step(self, number: int) -> None:
        sandbox = self._open()
        kind = number % 3
        if kind == 0:
            _expect(sandbox.sh(f"echo $(({number} + 1))").stdout, f"{number + 1}\n")
        elif kind == 1:
            process = sandbox.spawn(["cat"])
            process.write(f"input {number}".encode())
            process.close_stdin()
            _expect(process.wait(timeout=60).stdout, f"input {number}")
        else:
            sandbox.write_file("note.txt", f"note {number}")
            _expect(sandbox.sh("cat note.txt").stdout, f"note {number}")

    def attack(self, name: str) -> str:
        sandbox, command = self._open(), _HOSTILE_COMMANDS[name]
        try:
            if name == "terminal":
                process = sandbox.spawn(command, pty=PtySize(80, 24), timeout=20)
                return str(process.wait(timeout=60).exit_code)
            return str(sandbox.sh(command, timeout=_ENDLESS_SECONDS if name == "endless" else 20).exit_code)
        except SandboxError as limit:
            return type(limit).__name__
        finally:
            self.close()

    def _open(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = Sandbox(live=True, timeout=60, limits=LIMITS)
        return self._sandbox

    def close(self) -> None:
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            sandbox.close()


class Cells:
    """Cells of one Python session. Variables outlive what does not kill the interpreter; a restart repairs the rest."""

    hostile = tuple(_HOSTILE_CELLS)

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None
        self._session: Session | None = None

    def step(self, number: int) -> None:
        session = self._open()
        if number % 3 == 0:
            cell = session.run("raise ValueError('meant')")
            _expect(cell.error.message if cell.error else "", "meant")
        else:
            session.run(f"kept = {number}")
            _expect(session.run("kept * 2").value, str(number * 2))

    def attack(self, name: str) -> str:
        session = self._open()
        try:
            cell = session.run(_HOSTILE_CELLS[name], timeout=_ENDLESS_SECONDS if name != "memory" else 20)
            ended = cell.error.name if cell.error else "done"
        except SandboxError as limit:
            ended = type(limit).__name__
        try:
            _expect(session.run("6 * 7").value, "42")
        except SessionEnded:
            ended += ", restarted"
        except (SandboxError, Wrong):
            if name not in ("no output", "threads"):  # these change what the next cells can do
                raise
        session.restart()
        _expect(session.run("6 * 7").value, "42")
        return ended

    def _open(self) -> Session:
        if self._session is None:
            self._sandbox = Sandbox(live=True, timeout=60, limits=LIMITS)
            self._session = self._sandbox.session("python")
        return self._session

    def close(self) -> None:
        self._session = None
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            sandbox.close()


class Doors:
    """Stateless runs over HTTP, of three protocols, and clients that hang up in the middle of everything."""

    hostile = ("hang up at once", "hang up early", "hang up late", "half a head", "half a body", "endless", "memory")

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = str(address.hostname), address.port
        self._connection: HTTPConnection | None = None

    def step(self, number: int) -> None:
        code = f"print({number} + 1)"
        path, body, read = _REQUESTS[number % len(_REQUESTS)]
        answer = self._ask(path, {**body, **_code_in(path, code)})
        for word in read:
            answer = answer[word] if isinstance(answer, dict) else None
        _expect(answer, f"{number + 1}\n")

    def attack(self, name: str) -> str:
        if name in ("endless", "memory"):
            code = "while True: pass" if name == "endless" else _HOSTILE_CELLS["memory"]
            limits = {"run_timeout": _ENDLESS_SECONDS if name == "endless" else 20, "memory_limit_MB": LIMITS.memory_mb}
            return str(self._ask("/run_code", {"language": "python", "code": code, **limits})["status"])
        sleeping = json.dumps({"language": "python", "code": "import time; time.sleep(3)", "run_timeout": 20}).encode()
        head = f"POST /run_code HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        whole = head.encode() + f"Content-Length: {len(sleeping)}\r\n\r\n".encode() + sleeping
        sent = {"half a head": whole[:40], "half a body": whole[:-20]}.get(name, whole)
        connection = HTTPConnection(self._host, self._port, timeout=60)
        try:
            connection.connect()
            connection.sock.sendall(sent)
            waits = {"hang up early": 0.05, "hang up late": 1.0}.get(name, 0.0)
            _await_readable(connection.sock.fileno(), waits)
        finally:
            connection.close()
        return "hung up"

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        for attempt in range(_MOST_ATTEMPTS):
            if self._connection is None:
                self._connection = HTTPConnection(self._host, self._port, timeout=120)
            try:
                self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                answer = self._connection.getresponse()
                content = answer.read()
            except (HTTPException, OSError):
                self.close()
                if attempt:  # once, because a kept connection may have been closed since the last request
                    raise
                continue
            if answer.status in (429, 503):
                time.sleep(0.2)
                continue
            if answer.status != 200:
                raise Wrong(f"{path}: {answer.status} {content[:500]!r}")
            return json.loads(content)
        raise Wrong(f"{path}: the server was busy {_MOST_ATTEMPTS} times")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


#: Path, body, and where the output is in the answer.
_REQUESTS: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("/run_code", {"language": "python", "run_timeout": 60}, ("run_result", "stdout")),
    ("/v1/run", {"language": "python", "timeout": 60}, ("stdout",)),
    ("/api/v2/execute", {"language": "python", "version": "*", "run_timeout": 60_000}, ("run", "stdout")),
)


def _code_in(path: str, code: str) -> dict[str, Any]:
    return {"files": [{"content": code}]} if path == "/api/v2/execute" else {"code": code}


@contextmanager
def running_server(workers: int) -> Iterator[str]:
    """The address of a `warmcell serve` of its own, which has to end well when it is asked to."""
    source = Path(__file__).resolve().parents[2] / "src"
    command = [sys.executable, "-m", "warmcell", "serve", "--port", "0"]
    command += ["--workers", str(workers)] if workers else []
    paths = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        is_ready = _await_readable(server.stdout.fileno(), _STARTING_SECONDS)
        url = server.stdout.readline().strip() if is_ready else ""
        if not url:
            raise RuntimeError("the server did not start")
        yield url
        server.send_signal(signal.SIGTERM)
        if server.wait(60) not in (0, -signal.SIGTERM):
            raise Wrong(f"the server ended with {server.returncode}")
    finally:
        server.kill()
        server.communicate()


def _await_readable(descriptor: int, seconds: float) -> bool:
    """Without `select.select`, which takes no descriptor above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise Wrong(f"{found!r} instead of {wanted!r}")
