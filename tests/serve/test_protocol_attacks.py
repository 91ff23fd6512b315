"""The attacks on protocols (PT) that the server has to stand, at its own doors."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.conftest import Server
from tests.serve.requests import PLAIN, create_sandbox, stream_events


@pytest.fixture(scope="module")
def at(server: Server) -> Iterator[str]:
    where = create_sandbox(server.client)
    yield where
    server.client.delete(where)


@pytest.mark.attack("PT-01")
def test_bytes_that_are_no_text_come_through(server: Server, at: str) -> None:
    """In streams and in names: nothing is lost, and nothing breaks the answer."""
    raw = b"\xff\xfe\x00\xed\xa0\x80" * 3
    script = f"import sys, os; sys.stdout.buffer.write({raw!r}); open(b'odd-\\xff\\n-name', 'w').close()"
    ran = server.client.post(f"{at}/run", json={"code": script}).json()
    assert b64decode(ran["stdout_base64"]) == raw and ran["status"] == "success"
    process = server.client.post(f"{at}/processes", json={"command": ["python3", "-c", script]}).json()["pid"]
    with stream_events(server.client, "GET", f"{at}/processes/{process}/output") as events:
        told = list(events)
    assert b"".join(b64decode(said["base64"]) for name, said, _ in told if name == "stdout") == raw
    for path in ("files", "tree", "diff"):
        answer = server.client.get(f"{at}/{path}")
        assert answer.status_code == 200 and "odd-" in json.dumps(answer.json())
    with stream_events(server.client, "GET", f"{at}/watch") as events:
        next(events)
        server.client.post(f"{at}/sh", json={"script": "touch \"$(printf 'x\\nevent: error\\n\\n')\""})
        assert next(events)[0] == "file"  # a name is data, and never the beginning of another event


@pytest.mark.attack("PT-02")
@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("sh", {"script": "a\0b"}, "script"),
        ("exec", {"command": "cat", "args": ["a\0"]}, "args"),
        ("exec", {"command": "ca\0t"}, "command"),
        ("sh", {"script": "true", "cwd": "a\0"}, "cwd"),
        ("run", {"code": "1", "language": "py\0thon"}, "language"),
        ("processes", {"command": ["cat", "\0"]}, "command"),
        ("processes", {"command": "true", "env": {"A": "\0"}}, "env"),
        ("sessions", {"language": "python\0"}, "language"),
        ("mkdir", {"path": "a\0b"}, "a"),
    ],
    ids=str,
)
def test_a_nul_is_refused_by_name(server: Server, at: str, path: str, body: dict[str, Any], named: str) -> None:
    answer = server.client.post(f"{at}/{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["fault"]) == (422, "caller"), answer.text
    assert named in answer.json()["error"]["message"]


@pytest.mark.attack("PT-02")
def test_a_nul_in_a_path_is_refused(server: Server, at: str) -> None:
    assert server.client.get(f"{at}/files/a%00b").status_code == 422
    assert server.client.get(f"{at}/stat?path=a%00b").status_code == 422


@pytest.mark.attack("PT-03")
def test_code_of_no_size_and_of_every_size(server: Server, at: str) -> None:
    for code in ("", " \n\t "):
        assert server.client.post(f"{at}/run", json={"code": code}).status_code == 422
    long = "x = 1\n" * 200_000 + "print(x)"
    assert server.client.post("/v1/run", json=PLAIN | {"code": long}).json()["stdout"] == "1\n"
    answer = server.client.post("/v1/run", content=b'{"code": "' + b"x" * (17 << 20))
    assert answer.status_code in (413, 415)


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize("seconds", [0, -1, 1e308, "5", True, 301], ids=str)
def test_no_time_is_without_end(server: Server, at: str, seconds: object) -> None:
    for path, body in (("sh", {"script": "true"}), ("sessions/x/run", {"code": "1"}), ("run", {"code": "1"})):
        answer = server.client.post(f"{at}/{path}", json=body | {"timeout": seconds})
        assert answer.status_code in (404, 422) and answer.json()["error"]["fault"] == "caller"
    assert server.client.post("/v1/sandboxes", json={"limits": {"memory_mb": seconds}}).status_code in (201, 422)
    for odd in ("nan", "inf", "-1", "0", "1e999", "x"):
        assert server.client.get(f"{at}/processes/1/wait?timeout={odd}").status_code in (404, 422)


@pytest.mark.attack("PT-05")
@pytest.mark.parametrize("language", ["klingon", "../../bin/sh", "PYTHON ", "", "\u0000"], ids=str)
def test_no_other_language_is_run(server: Server, at: str, language: str) -> None:
    for path in ("run", "sessions"):
        body = {"language": language} | ({"code": "1"} if path == "run" else {})
        assert server.client.post(f"{at}/{path}", json=body).status_code == 422


@pytest.mark.attack("PT-06")
@pytest.mark.parametrize(
    ("script", "status", "exit_code", "signal"),
    [
        ("exit 255", "success", 255, None),
        ("kill -TERM $$", "success", 143, 15),
        ("kill -KILL $$", "success", 137, 9),
        ("kill -SEGV $$", "success", 139, 11),
        ("sleep 60", "timeout", None, None),
    ],
)
def test_every_end_is_told_apart(
    server: Server, at: str, script: str, status: str, exit_code: int | None, signal: int | None
) -> None:
    timeout = 0.5 if status == "timeout" else 30
    ran = server.client.post(f"{at}/exec", json={"command": "sh", "args": ["-c", script], "timeout": timeout}).json()
    assert ran["status"] == status
    if status == "success":
        assert (ran["exit_code"], ran["signal"]) == (exit_code, signal)


@pytest.mark.attack("PT-13")
def test_two_at_once_and_after_the_end(server: Server) -> None:
    """Cells of one session come in turn; what is closed or destroyed says so, however often."""
    client, at = server.client, create_sandbox(server.client)
    session = f"{at}/sessions/{client.post(f'{at}/sessions', json={}).json()['id']}"
    client.post(f"{session}/run", json={"code": "import time; order = []"})
    code = "order.append('in'); time.sleep(0.2); order.append('out'); order"
    cells = [
        threading.Thread(target=client.post, args=(f"{session}/run",), kwargs={"json": {"code": code}}) for _ in "ab"
    ]
    for cell in cells:
        cell.start()
    for cell in cells:
        cell.join(60)
    assert client.post(f"{session}/run", json={"code": "order"}).json()["value"] == "['in', 'out', 'in', 'out']"
    found: list[dict[str, Any]] = []

    def endless() -> None:
        body = {"code": "print('up', flush=True)\nwhile True: pass", "timeout": 60}
        with stream_events(client, "POST", f"{session}/run", json=body) as events:
            for _, said, _ in events:
                found.append(said)
                is_up.set()

    is_up, running = threading.Event(), threading.Thread(target=endless)
    running.start()
    assert is_up.wait(30)
    assert client.delete(session).status_code == 204
    running.join(30)
    assert found[-1]["status"] == "ended" and found[-1]["error"]["code"] == "sandbox.session_ended"
    assert client.delete(session).status_code == 404
    assert client.delete(at).status_code == 204
    assert client.delete(at).status_code == 404
    answer = client.post(f"{session}/run", json={"code": "1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "sandbox.destroyed")
