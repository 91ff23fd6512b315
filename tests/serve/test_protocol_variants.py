"""Variants of the attacks on protocols that the catalogue does not spell out, each at every door that takes code."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import until
from tests.serve.conftest import Server
from tests.serve.requests import FUSION, PISTON, PLAIN, Box, cell, create_sandbox, post

Start = Callable[..., AbstractContextManager[Server]]
ODD = "a\ud800b"


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Box]:
    made = Box(server.client)
    yield made
    made.kill()


def _output_of(server: Server, box: Box, code: str) -> dict[str, str]:
    """What each door answers to a program, as text."""
    return {
        "own": post(server, "/v1/run", PLAIN | {"code": code}).text,
        "e2b cell": cell(box, code=code).text,
        "e2b command": "".join(map(str, box.run(f"cat > p.py <<'END'\n{code}\nEND\npython3 p.py")[1:])),
        "fusion": post(server, "/run_code", FUSION | {"code": code}).text,
        "fusion cell": post(server, "/run_jupyter", {"cells": [code]}).text,
        "piston": post(server, "/api/v2/execute", PISTON | {"files": [{"content": code}]}).text,
    }


@pytest.mark.attack("PT-08")
def test_tricks_of_the_language_get_nowhere_through_any_door(server: Server, box: Box, tmp_path: Path) -> None:
    """They work, as they do in every Python, and find what every program finds: not the host's files."""
    canary = tmp_path / "canary"
    canary.write_text("the canary of the host")
    code = f"""
import ctypes, importlib
opened = [lambda: open({str(canary)!r}).read()]
for kind in ().__class__.__base__.__subclasses__():
    if kind.__name__ == '_wrap_close':
        opened.append(lambda kind=kind: kind.__init__.__globals__['popen']('cat {canary}').read())
opened.append(lambda: importlib.import_module('os').popen('cat {canary}').read())
opened.append(lambda: eval(compile("open({str(canary)!r}).read()", 'x', 'eval')))
try:
    1 / 0
except ZeroDivisionError as error:
    opened.append(lambda frame=error.__traceback__.tb_frame: frame.f_builtins['open']({str(canary)!r}).read())
libc = ctypes.CDLL(None)
opened.append(lambda: str(libc.open({str(canary)!r}.encode(), 0)).replace('-1', ''))
for attempt in opened:
    try:
        print('got', attempt())
    except OSError:
        print('refused')
print('tried', len(opened))
"""
    for door, text in _output_of(server, box, code).items():
        assert "tried 6" in text, (door, text)
        assert "canary of the host" not in text and not any(f"got {digit}" in text for digit in range(10)), (door, text)


@pytest.mark.attack("PT-02")
def test_half_a_character_is_refused_at_every_door(server: Server, box: Box) -> None:
    at = create_sandbox(server.client)
    answers = [
        post(server, "/v1/run", PLAIN | {"code": ODD}),
        post(server, "/v1/run", PLAIN | {"env": {"A": ODD}}),
        post(server, f"{at}/exec", {"command": "true", "args": [ODD]}),
        post(server, f"{at}/mkdir", {"path": ODD}),
        post(server, f"{at}/sessions", {"language": "python", "env": {ODD: "1"}}),
        post(server, "/run_code", FUSION | {"files": {ODD: ""}}),
        post(server, "/run_code", FUSION | {"code": ODD}),
        post(server, "/api/v2/execute", PISTON | {"args": [ODD]}),
        post(server, "/api/v2/execute", PISTON | {"files": [{"name": ODD, "content": "1"}]}),
        post(server, "/v2/sandboxes", {"templateID": "base", "envVars": {"A": ODD}}),
        post(server, "/execute", {"code": ODD}, box.headers),
        post(server, "/filesystem.Filesystem/Stat", {"path": ODD}, box.headers),
    ]
    server.client.delete(at)
    assert [answer.status_code for answer in answers if not 400 <= answer.status_code < 500] == [], answers
    command = box.stream("process.Process/Start", process={"cmd": "true", "args": [ODD]})
    assert command[-1]["error"]["code"] == "invalid_argument", command


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize(
    "wrong", [float("nan"), float("inf"), 1e308, -7, "64", [], 10**400], ids=lambda value: str(value)[:5]
)
def test_no_memory_is_without_end(server: Server, wrong: Any) -> None:
    """A request that asks for an amount that is none is refused, or has the usual one."""
    hungry = "x = bytearray(6 << 30)\nprint('all of it')"
    own = post(server, "/v1/run", PLAIN | {"code": hungry, "limits": {"memory_mb": wrong}})
    assert own.status_code in (400, 422), own.text
    for path, body in (
        ("/run_code", FUSION | {"code": hungry, "memory_limit_MB": wrong}),
        ("/api/v2/execute", PISTON | {"files": [{"content": hungry}], "run_memory_limit": wrong}),
    ):
        answer = post(server, path, body)
        assert answer.status_code in (200, 400, 422) and "all of it" not in answer.text, answer.text
        assert "SandboxError" not in answer.text, answer.text


@pytest.mark.attack("PT-06")
def test_too_much_memory_is_the_guests_end_at_every_door(server: Server, box: Box) -> None:
    hungry = "x = bytearray(900 << 20)\nprint('all of it')"
    limited = post(server, "/v1/run", PLAIN | {"code": hungry, "memory_limit_mb": 64}).json()
    assert limited["status"] == "memory_exceeded", limited
    fusion = post(server, "/run_code", FUSION | {"code": hungry, "memory_limit_MB": 64}).json()
    assert (fusion["status"], fusion["run_result"]["stdout"]) == ("Failed", ""), fusion
    piston = post(
        server, "/api/v2/execute", PISTON | {"files": [{"content": hungry}], "run_memory_limit": 64 << 20}
    ).json()
    assert piston["run"]["code"] != 0 and piston["run"]["stdout"] == "", piston
    told = [json.loads(line) for line in cell(box, code=hungry).text.splitlines()]
    assert "error" in [line["type"] for line in told] or told[-1]["type"] == "end_of_execution"
    assert "all of it\\n" not in json.dumps(told)
    assert box.run("echo still here")[1] == "still here\n"


@pytest.mark.attack("PT-11")
def test_nothing_outlives_a_server_that_is_killed(start_server: Start) -> None:
    """What any door started: a run, a command, a cell, a process that goes on between requests."""
    mark = f"{os.getpid()}7{time.monotonic_ns() % 10**9}"
    sleeping = f"import subprocess; subprocess.run(['sleep', '{mark}'])"
    with start_server() as server:
        box, at = Box(server.client), create_sandbox(server.client)
        server.client.post(f"{at}/processes", json={"command": ["sleep", mark]})
        asked = [
            _send(server, "/v1/run", PLAIN | {"code": sleeping, "timeout": 200}),
            _send(server, "/run_code", FUSION | {"code": sleeping, "run_timeout": 200}),
            _send(server, "/execute", {"code": sleeping}, box.headers),
        ]
        until(lambda: _sleepers(mark) == len(asked) + 1)
        server.process.kill()
        server.process.wait(30)
        until(lambda: _sleepers(mark) == 0)
        for connection in asked:
            connection.close()


def _send(server: Server, path: str, body: Any, headers: dict[str, str] | None = None) -> HTTPConnection:
    """A request whose response is not read."""
    address = httpx.URL(server.url)
    connection = HTTPConnection(address.host, address.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **(headers or {})})
    return connection


def _sleepers(mark: str) -> int:
    listed = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    return listed.splitlines().count(f"sleep {mark}")
