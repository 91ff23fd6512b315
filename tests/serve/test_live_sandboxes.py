"""Processes, sessions, ports, forks and watches of `/v1/sandboxes/{id}`."""

from __future__ import annotations

import signal
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import until
from tests.serve.conftest import Server, make_token
from tests.serve.requests import Event, create_sandbox, stream_events

GREETING = """
import socket
listening = socket.create_server(('127.0.0.1', 8123))
print('up', flush=True)
while True:
    listening.accept()[0].sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\nhello')
"""


@pytest.fixture(scope="module")
def at(server: Server) -> Iterator[str]:
    where = create_sandbox(server.client, env={"A": "b"})
    yield where
    server.client.delete(where)


def test_a_process_is_fed_heard_and_ended(server: Server, at: str) -> None:
    client = server.client
    script = "read line; echo got $line $A; echo oops >&2; read more || echo end; exit 3"
    started = client.post(f"{at}/processes", json={"command": script})
    assert started.status_code == 201, started.text
    process = f"{at}/processes/{started.json()['pid']}"
    assert started.json()["is_running"] is True and started.json()["command"] == script
    assert client.get(f"{process}/wait?timeout=0.05").json() == {"status": "running"}
    assert client.post(f"{process}/stdin", content=b"word\n").status_code == 204
    with stream_events(client, "GET", f"{process}/output") as events:
        name, said, place = next(events)
        assert (name, said["text"], b64decode(said["base64"])) == ("stdout", "got word b\n", b"got word b\n")
        assert place == "11-0"
        assert client.delete(f"{process}/stdin").status_code == 204
        rest = list(events)
    assert {(name, said.get("text")) for name, said, _ in rest} >= {("stderr", "oops\n"), ("stdout", "end\n")}
    assert (rest[-1][0], rest[-1][1]["exit_code"], rest[-1][1]["status"]) == ("result", 3, "success")
    with stream_events(client, "GET", f"{process}/output?from=4-0") as events:
        assert "".join(said["text"] for name, said, _ in events if name == "stdout") == "word b\nend\n"
    with stream_events(client, "GET", f"{process}/output", headers={"last-event-id": "15-5"}) as events:
        assert [name for name, _, _ in events] == ["result"]
    assert client.get(f"{process}/wait").json()["stdout"] == "got word b\nend\n"
    assert client.get(process).json()["exit_code"] == 3
    assert client.post(f"{process}/stdin", content=b"x").status_code == 409
    assert client.get(f"{process}/output?from=a").status_code == 422


def test_a_terminal_has_a_size_and_signals(server: Server, at: str) -> None:
    client = server.client
    asked = {"command": ["sh"], "pty": {"cols": 90, "rows": 30}, "env": {"PS1": "$ "}}
    process = f"{at}/processes/{client.post(f'{at}/processes', json=asked).json()['pid']}"
    assert client.post(f"{process}/resize", json={"cols": 100, "rows": 40}).status_code == 204
    assert client.post(f"{process}/stdin", content=b"stty size; exec sleep 60\n").status_code == 204
    with stream_events(client, "GET", f"{process}/output") as events:
        heard = ""
        while "40 100" not in heard:
            heard += next(events)[1]["text"]
    while client.get(f"{process}/wait?timeout=0.5").json()["status"] == "running":  # the shell itself bears it
        assert client.post(f"{process}/signal", json={"signal": signal.SIGINT}).status_code == 204
    assert client.get(f"{process}/wait").json()["signal"] == signal.SIGINT
    pids = [row["pid"] for row in client.get(f"{at}/processes").json()]
    assert int(process.rpartition("/")[2]) in pids


def test_a_program_without_a_name_ends_nothing(server: Server, at: str) -> None:
    other = server.client.post(f"{at}/processes", json={"command": "sleep 60"}).json()["pid"]
    assert server.client.post(f"{at}/processes", json={"command": ["", "a"]}).status_code == 422
    assert server.client.get(f"{at}/processes/{other}").json()["is_running"] is True
    server.client.delete(f"{at}/processes/{other}")


def test_what_is_not_read_is_not_heaped_up(server: Server, at: str) -> None:
    client = server.client
    process = f"{at}/processes/{client.post(f'{at}/processes', json={'command': 'sleep 60'}).json()['pid']}"

    def write_and_leave() -> httpx.Response:
        """The response to a write after a longer one whose client has left."""
        with suppress(httpx.ReadTimeout):
            client.post(f"{process}/stdin", content=b"x" * 300_000, timeout=httpx.Timeout(60, read=0.5))
        return client.post(f"{process}/stdin", content=b"y")

    until(lambda: write_and_leave().status_code == 409)  # a client may leave before the server has read its body
    answer = client.post(f"{process}/stdin", content=b"y")
    assert (answer.status_code, answer.json()["error"]["retryable"]) == (409, True)
    assert client.delete(process).status_code == 204
    assert client.get(f"{process}/wait").json()["signal"] == signal.SIGKILL


def test_a_session_remembers(server: Server, at: str) -> None:
    client = server.client
    answer = client.post(f"{at}/sessions", json={"language": "python"})
    assert answer.status_code == 201, answer.text
    session = f"{at}/sessions/{answer.json()['id']}"
    assert client.post(f"{session}/run", json={"code": "x = 6"}).json()["status"] == "success"
    ran = client.post(f"{session}/run", json={"code": "print('a'); x * 7"}).json()
    assert (ran["stdout"], ran["value"], ran["execution_count"]) == ("a\n", "42", 2)
    assert ran["outputs"][0]["mime"]["text/plain"] == "42"
    assert client.post(f"{session}/run", json={"code": "1/0"}).json()["error"]["name"] == "ZeroDivisionError"
    assert client.get(f"{session}/variables").json()["x"] == "6"
    code = "import sys\nprint('out'); print('err', file=sys.stderr); name = input('who? '); display(name)\nname * 2"
    asked = {"code": code, "answers_input": True}
    with stream_events(client, "POST", f"{session}/run", json=asked) as events:
        heard = []
        for name, said, _ in events:
            heard.append((name, said.get("text", said.get("prompt"))))
            if name == "input":
                assert client.post(f"{session}/input", json={"text": "ab"}).status_code == 204
        assert {("stdout", "out\n"), ("stderr", "err\n"), ("input", "who? ")} <= set(heard)
        assert [name for name, _ in heard].count("display") == 2 and (name, said["value"]) == ("result", "'abab'")
    assert client.post(f"{session}/input", json={"text": ""}).status_code == 409
    late = client.post(f"{session}/run", json={"code": "print('so far')\nwhile True: pass", "timeout": 3}).json()
    assert (late["status"], late["stdout"], late["error"]["details"]["timeout"]) == ("timeout", "so far\n", 3)
    assert client.post(f"{session}/restart").status_code == 204
    assert "x" not in client.get(f"{session}/variables").json()
    assert client.delete(session).status_code == 204
    assert client.get(session).status_code == 404
    assert client.get(f"{at}/sessions").json() == []


@pytest.mark.attack("PT-09")
def test_a_cell_is_interrupted_by_a_call_and_by_its_client_going(server: Server, at: str) -> None:
    client = server.client
    session = f"{at}/sessions/{client.post(f'{at}/sessions', json={}).json()['id']}"
    endless = {"code": "print('begun', flush=True)\nwhile True: pass"}
    with stream_events(client, "POST", f"{session}/run", json=endless) as events:
        assert next(events)[0] == "stdout"
        assert client.post(f"{session}/interrupt").json() == {"interrupted": True}
        assert list(events)[-1][1]["error"]["name"] == "KeyboardInterrupt"
    with stream_events(client, "POST", f"{session}/run", json=endless) as events:
        next(events)
    assert client.post(f"{session}/run", json={"code": "2 + 2"}).json()["value"] == "4"
    client.delete(session)


def test_runs_of_a_sandbox_tell_as_they_go(server: Server, at: str) -> None:
    with stream_events(server.client, "POST", f"{at}/sh", json={"script": "echo a; echo b >&2; exit 4"}) as events:
        told = list(events)
    assert {(name, said.get("text")) for name, said, _ in told} >= {("stdout", "a\n"), ("stderr", "b\n")}
    assert (told[-1][0], told[-1][1]["exit_code"]) == ("result", 4)
    with stream_events(server.client, "POST", f"{at}/exec", json={"command": "no-such"}) as events:
        assert [(name, said["error"]["code"]) for name, said, _ in events] == [("error", "sandbox.command_not_found")]


def test_files_in_every_form(server: Server) -> None:
    client = server.client
    at = create_sandbox(client)
    assert client.post(f"{at}/mkdir", json={"path": "a/b", "parents": True}).status_code == 204
    client.put(f"{at}/files/a/b/text", content=b"one\ntwo\n")
    client.post(f"{at}/sh", json={"script": "ln -s text a/b/link"})
    found = {entry["path"]: entry for entry in client.get(f"{at}/tree").json()}
    assert list(found) == ["a", "a/b", "a/b/link", "a/b/text"]
    assert found["a/b/link"]["is_symlink"] and not found["a/b/link"]["is_file"] and found["a/b/text"]["size"] == 8
    assert [entry["path"] for entry in client.get(f"{at}/tree?path=a&depth=1").json()] == ["b"]
    assert client.get(f"{at}/stat?path=a/b/text").json()["size"] == 8
    page = client.get(f"{at}/files/a/b/text")
    assert (page.headers["content-security-policy"], page.headers["x-content-type-options"]) == ("sandbox", "nosniff")
    archive = client.get(f"{at}/download?path=a").content
    assert client.post(f"{at}/upload?path=copy&extract=true", content=archive).json()["files"] == 1
    assert client.get(f"{at}/files/copy/b/text").content == b"one\ntwo\n"
    assert client.post(f"{at}/upload?path=.", content=b"x").status_code == 409
    patch = "--- a/text\n+++ b/text\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    changed = client.post(f"{at}/patch", json={"patch": patch, "path": "copy/b"})
    assert changed.json()[0]["kind"] == "modified", changed.text
    misfit = client.post(f"{at}/patch", json={"patch": patch, "path": "copy/b"}).json()["error"]
    assert (misfit["code"], misfit["details"]["misfits"][0]["hunk"]) == ("sandbox.patch_rejected", 1)
    assert {change["path"]: change["entry"] for change in client.get(f"{at}/diff").json()}["a/b/link"] == "symlink"
    taken = client.post(f"{at}/snapshots").json()["id"]
    assert client.delete(f"{at}/files/a?recursive=false").status_code == 422
    client.delete(f"{at}/files/a")
    with_it = client.post(f"{at}/fork", json={"snapshot": taken, "metadata": {"of": "a"}}).json()
    fork = f"/v1/sandboxes/{with_it['id']}"
    assert client.get(f"{fork}/files/a/b/text").status_code == 200 and with_it["metadata"] == {"of": "a"}
    assert client.post(f"{at}/restore", json={"snapshot": taken}).status_code == 204
    assert client.get(f"{at}/files/a/b/text").status_code == 200
    assert client.post(f"{at}/restore", json={"snapshot": "0" * 32}).status_code == 404
    assert "sh" in client.get(f"{at}/tools").json()
    client.delete(fork)
    client.delete(at)


def test_what_happens_to_files_is_told(server: Server, at: str) -> None:
    with stream_events(server.client, "GET", f"{at}/watch?recursive=true") as events:
        assert next(events)[0] == "ready"
        server.client.put(f"{at}/files/deep/seen", content=b"x")
        for name, said, _ in events:
            if (name, said["path"]) == ("file", "deep/seen"):
                break
    assert server.client.get(f"{at}/watch?path=no-such").status_code == 404
    assert server.client.get(f"{at}/watch?recursive=1").status_code == 422
    assert server.client.head(f"{at}/watch").status_code == 405


def test_a_port_is_exposed_on_loopback(server: Server, at: str) -> None:
    client = server.client
    code = "import socket; s = socket.create_server(('127.0.0.1', 8123)); print('up', flush=True)\nwhile 1: s.accept()[0].sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\nhello')"
    process = (
        f"{at}/processes/{client.post(f'{at}/processes', json={'command': ['python3', '-c', code]}).json()['pid']}"
    )
    with stream_events(client, "GET", f"{process}/output") as events:
        next(events)
    exposed = client.post(f"{at}/ports", json={"port": 8123}).json()
    assert exposed["url"].startswith("http://127.0.0.1:") and client.get(f"{at}/ports").json() == [exposed]
    assert httpx.get(exposed["url"], trust_env=False, timeout=30).text == "hello"
    assert client.get(f"{at}/ports/8123/").status_code == 404  # a guest's page never has this server's origin
    assert client.delete(f"{at}/ports/8123").status_code == 204
    with pytest.raises(httpx.HTTPError):
        httpx.get(exposed["url"], trust_env=False, timeout=30)
    client.delete(process)


def test_a_branch_is_a_sandbox_of_its_own(server: Server) -> None:
    client = server.client
    at = create_sandbox(client, forkable=True)
    session = f"{at}/sessions/{client.post(f'{at}/sessions', json={}).json()['id']}"
    client.post(f"{session}/run", json={"code": "x = 1"})
    branch = client.post(f"{session}/fork", json={"lifetime": 60})
    assert branch.status_code == 201, branch.text
    other = f"/v1/sandboxes/{branch.json()['sandbox']['id']}/sessions/{branch.json()['session']['id']}"
    assert client.post(f"{other}/run", json={"code": "x += 1; x"}).json()["value"] == "2"
    assert client.delete(at).status_code == 204
    assert client.post(f"{other}/run", json={"code": "x"}).json()["value"] == "2"
    client.delete(other.partition("/sessions")[0])


@pytest.mark.attack("S2-30")
def test_what_lives_in_anothers_sandbox_is_not_there(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """A process id, a session, a port, a watch: for others as if there were no such sandbox."""
    file = tmp_path / "tokens.json"
    tokens = [make_token(file, "one"), make_token(file, "two", "--sandboxes", "1")]
    with start_server("--tokens", str(file)) as server:
        one, two = (
            httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=60, trust_env=False)
            for token in tokens
        )
        at, never, own = create_sandbox(one), "/v1/sandboxes/" + "0" * 32, create_sandbox(two)
        pid = one.post(f"{at}/processes", json={"command": "sleep 60"}).json()["pid"]
        session = one.post(f"{at}/sessions", json={}).json()["id"]
        one.post(f"{at}/ports", json={"port": 80})
        for method, path, body in (
            ("GET", "/processes", None),
            ("POST", "/processes", {"command": "true"}),
            ("DELETE", f"/processes/{pid}", None),
            ("GET", f"/processes/{pid}/output", None),
            ("GET", f"/processes/{pid}/wait", None),
            ("POST", f"/processes/{pid}/stdin", None),
            ("POST", f"/sessions/{session}/run", {"code": "1"}),
            ("POST", f"/sessions/{session}/fork", {}),
            ("DELETE", f"/sessions/{session}", None),
            ("DELETE", "/ports/80", None),
            ("GET", "/ports", None),
            ("POST", "/fork", {}),
            ("POST", "/snapshots", None),
            ("GET", "/watch", None),
            ("GET", "/download", None),
            ("GET", "/tree", None),
        ):
            answers = [two.request(method, where + path, json=body) for where in (at, never)]
            assert {answer.status_code for answer in answers} == {404}, path
            assert answers[0].content == answers[1].content
        for path in (f"/processes/{pid}", f"/sessions/{session}"):
            assert two.get(own + path).status_code == 404  # in its own sandbox there is none of that name
        assert two.post(f"{own}/fork", json={}).status_code == 429
        assert one.get(f"{at}/processes/{pid}").json()["is_running"] is True


def test_what_stands_for_ever_ends_with_the_server(start_server: Callable[..., Any]) -> None:
    with start_server() as server:
        at = create_sandbox(server.client)
        last: list[Event] = []
        is_ready = threading.Event()

        def watch() -> None:
            with stream_events(server.client, "GET", f"{at}/watch") as events:
                for item in events:
                    is_ready.set()
                    last.append(item)

        watching = threading.Thread(target=watch)
        watching.start()
        assert is_ready.wait(30)
        server.process.send_signal(signal.SIGTERM)
        watching.join(60)
        assert server.process.wait(60) == 0
        assert (last[-1][0], last[-1][1]["error"]["code"]) == ("error", "http.503")


def test_what_a_sandbox_was_not_made_for_is_a_conflict(server: Server) -> None:
    """And no mistake in a request that would be right for another one."""
    client = server.client
    few, hasty = (
        create_sandbox(client, limits={"processes": 1, "output_bytes": 9}),
        create_sandbox(client, timeout=1e-9),
    )
    assert client.get(f"{few}/tools").status_code == 409
    asked = {"ports": {"port": 8000}, "sessions": {"language": "python"}, "processes": {"command": "true"}}
    answers = [client.post(f"{few}/{path}", json=body) for path, body in asked.items()]
    assert [answer.status_code for answer in answers] == [409] * 3, [answer.text for answer in answers]
    session = f"{hasty}/sessions/" + client.post(f"{hasty}/sessions", json={"language": "python"}).json()["id"]
    assert client.post(f"{session}/fork", json={}).status_code == 409
    late = client.get(f"{session}/variables")
    assert (late.status_code, late.json()["error"]["fault"]) == (409, "guest")
    for at in (few, hasty):
        assert client.delete(at).status_code == 204


def test_too_few_open_files_are_the_mistake_of_who_asked(server: Server) -> None:
    body = {"language": "python", "code": "1", "timeout": 30, "limits": {"open_files": 31}}
    answer = server.client.post("/v1/run", json=body)
    assert (answer.status_code, answer.json()["error"]["fault"]) == (422, "caller")
    assert server.client.post("/v1/run", json=body | {"limits": {"open_files": 32}}).json()["exit_code"] == 0


def test_the_document_says_what_signing_in_can_be_told(server: Server) -> None:
    told = server.client.get("/openapi.json").json()["paths"]["/v1/sign-in"]["post"]["responses"]
    assert str(server.client.post("/v1/sign-in", json=[]).status_code) in told
