"""`warmcell top`: a table into a pipe, a screen for a person, a server's runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import termios
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.unit.interfaces.cli.terminal import Terminal

from warmcell import Sandbox
from warmcell.core.errors import BackendUnavailable
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.top import ServerActivity, table


def top(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "warmcell", "top", *words], capture_output=True, text=True)


def test_a_table_is_aligned_and_nothing_is_said_in_words() -> None:
    assert table([]) == ["nothing is running"]
    row = {
        "pid": 7,
        "program": 3,
        "cpu": 99.6,
        "memory": 3 << 20,
        "processes": 2,
        "seconds": 7200.0,
        "command": "x" * 99,
    }
    summary, names, line = table([row])
    assert summary == "1 in cages of 1 programs, 3.0 MB"
    assert names.split() == [name.upper() for name in row]
    assert line.split() == ["7", "3", "100", "%", "3.0", "MB", "2", "2", "h", "x" * 47 + "…"]


@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
def test_a_sandbox_is_seen_in_a_pipe_and_on_a_terminal() -> None:
    with Sandbox() as sandbox:
        sandbox.spawn("sleep 4321")
        rows = json.loads(top("--json").stdout)["rows"]
        assert [row["processes"] for row in rows if "sleep 4321" in row["command"]]
        printed = top("--sort", "memory")
        assert "sleep 4321" in printed.stdout and "\x1b" not in printed.stdout and printed.stderr == ""
        terminal = Terminal("top", "--every", "0.2")
        try:
            terminal.resize(200, 50)
            terminal.until("sleep 4321")
            terminal.type("m")
            terminal.until("sleep 4321")
            terminal.type("q")
            terminal.until("\x1b[?1049l")
            assert terminal.process.wait(30) == 0
            assert termios.tcgetattr(terminal.theirs) == terminal.before
        finally:
            terminal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal(number: int) -> None:
    terminal = Terminal("top", "--every", "60")
    try:
        terminal.until("q quits")
        terminal.process.send_signal(number)
        terminal.until("\x1b[?1049l")
        assert terminal.process.wait(30) == 128 + number
        assert termios.tcgetattr(terminal.theirs) == terminal.before
    finally:
        terminal.close()


class Answers(BaseHTTPRequestHandler):
    status, body, location = 200, b"", ""
    seen: list[str | None]

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        self.send_response(self.status)
        if self.location:
            self.send_header("Location", self.location)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


def serve_once(status: int, body: bytes, location: str = "") -> tuple[ServerActivity, list[str | None], HTTPServer]:
    seen: list[str | None] = []
    answers = {"status": status, "body": body, "seen": seen, "location": location}
    server = HTTPServer(("127.0.0.1", 0), type("Own", (Answers,), answers))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return ServerActivity(f"http://127.0.0.1:{server.server_port}/", "t0ken"), seen, server


def test_a_servers_runs_and_sandboxes() -> None:
    run = {"id": "r\x1b[31m", "language": "python", "state": "running", "seconds": 1.5}
    body = json.dumps({"runs": [run], "sandboxes": [{"id": "s", "seconds": 61}]}).encode()
    activity, seen, server = serve_once(200, body)
    lines = table(activity.read())
    assert lines[0] == "1 runs, 1 sandboxes"
    assert "\x1b" not in "".join(lines)
    assert seen == ["Bearer t0ken"]
    server.shutdown()


def test_the_nodes_of_a_cluster() -> None:
    node = {"id": "0123456789", "address": "10.0.0.1", "cores": 4, "running": 2, "reason": ""}
    box = {"id": "s", "seconds": 61, "node": "01234567"}
    body = json.dumps({"runs": [], "sandboxes": [box], "nodes": [node, {**node, "reason": "draining"}]}).encode()
    activity, _, server = serve_once(200, body)
    lines = table(activity.read())
    assert lines[0] == "2 nodes, 1 sandboxes"
    assert lines[2].split()[:7] == ["nodes", "01234567", "2", "requests,", "4", "processors", "10.0.0.1"]
    assert "draining" in lines[3] and "01234567" in lines[4]
    server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "location", "words"),
    [
        (401, b"", "", "401"),
        (200, b"<html>", "", "not from a Warmcell"),
        (200, b'{"runs": 3}', "", "not from a Warmcell"),
        (302, b"", "http://127.0.0.1:1/", "302"),
    ],
)
def test_what_is_no_answer_is_said_in_words(status: int, body: bytes, location: str, words: str) -> None:
    activity, seen, server = serve_once(status, body, location)
    with pytest.raises(BackendUnavailable, match=words):
        activity.read()
    assert len(seen) == 1
    server.shutdown()


def test_nobody_there_and_no_address() -> None:
    with pytest.raises(BackendUnavailable, match="cannot connect"):
        ServerActivity("http://127.0.0.1:1", "").read()
    with pytest.raises(UsageError, match="is not a URL"):
        ServerActivity("file:///etc/hostname", "")
