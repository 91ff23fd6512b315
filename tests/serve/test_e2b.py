"""E2B's protocol on the wire: what its SDKs send, and what they make everything depend on. The SDKs themselves: scripts/test-e2b."""

from __future__ import annotations

import json
import os
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import until
from tests.serve.conftest import Server, make_token
from tests.serve.requests import Box, states_of_sleep

from warmcell.core.errors import MemoryExceeded
from warmcell.interfaces.serve.e2b import process as process_calls
from warmcell.interfaces.serve.requests import MAX_VALUES


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Box]:
    made = Box(server.client, envVars={"A": "b"}, metadata={"x": "y z"})
    yield made
    made.kill()


def test_commands(box: Box) -> None:
    assert box.run("echo $A; pwd; echo e >&2; exit 3") == (3, "b\n/home/user\n", "e\n")
    assert box.run("pwd; echo $B", cwd="/tmp", envs={"B": "c"}) == (0, "/tmp\nc\n", "")
    assert box.run("pwd", cwd="/root") == (0, "/home/user\n", "")  # the home of `root`, who is the same user
    refused = box.stream("process.Process/Start", process={"cmd": "true", "cwd": "/nowhere"})
    assert refused[-1]["error"]["code"] == "invalid_argument"


def test_clients_that_want_a_workspace_find_one(box: Box) -> None:
    assert box.run("mkdir -p -- /workspace && echo w > /workspace/there && cat ~/there; rm there") == (0, "w\n", "")


def test_a_command_past_its_time_is_told_so(box: Box) -> None:
    process = {"cmd": "/bin/sleep", "args": ["300"]}
    events = box.stream("process.Process/Start", {"connect-timeout-ms": "300"}, process=process)
    assert events[-1]["error"]["code"] == "deadline_exceeded"
    assert box.call("process.Process/List").json()["processes"] == []


def test_a_command_past_the_memory_limit_was_killed() -> None:
    """It was "unavailable", from which the SDKs conclude that the sandbox has ended. It has not."""

    class Killed:
        @property
        def local(self) -> Any:
            return self

        def result(self) -> None:
            raise MemoryExceeded(64)

    killed: Any = Killed()
    end = process_calls._end(killed)
    assert (end["exitCode"], end["exited"], end["status"]) == (-1, False, "signal: killed")
    assert "64 MB" in end["error"]


def test_a_stream_ends_at_its_deadline_and_the_command_goes_on(box: Box) -> None:
    text = json.dumps({"process": {"cmd": "/bin/sleep", "args": ["30"]}, "tag": "slow"}).encode()
    sent = b"\0" + len(text).to_bytes(4, "big") + text
    kind = {"content-type": "application/connect+json"}
    at, late = "/process.Process/Start", {"connect-timeout-ms": "300"}
    with box.client.stream("POST", at, content=sent, headers=box.headers | kind) as started:
        pieces = started.iter_raw()
        next(pieces)
        events = box.stream("process.Process/Connect", late, process={"tag": "slow"})
        assert "start" in events[0]["event"] and events[-1]["error"]["code"] == "deadline_exceeded"
        assert [row["tag"] for row in box.call("process.Process/List").json()["processes"]] == ["slow"]
        box.call("process.Process/SendSignal", process={"tag": "slow"}, signal="SIGNAL_SIGKILL")
    until(lambda: box.call("process.Process/List").json()["processes"] == [])
    watched = box.stream("filesystem.Filesystem/WatchDir", late, path=".")
    assert watched[0] == {"start": {}} and watched[-1]["error"]["code"] == "deadline_exceeded"


def test_files(box: Box) -> None:
    where = {"path": "dir/a.bin", "username": "user"}
    content = bytes(range(256)) * 2000  # more than one piece
    kind = {"content-type": "application/octet-stream"}
    written = box.client.post("/files", params=where, content=content, headers=box.headers | kind)
    assert written.json() == [{"path": "/home/user/dir/a.bin", "name": "a.bin", "type": "file"}]
    assert box.client.get("/files", params=where, headers=box.headers).content == content
    several = {"file": ("/tmp/b.txt", b"b")}
    assert box.client.post("/files", files=several, headers=box.headers).json()[0]["path"] == "/tmp/b.txt"
    assert box.run("cat /tmp/b.txt; wc -c < dir/a.bin") == (0, "b512000\n", "")
    assert box.client.get("/files", params={"path": "none"}, headers=box.headers).status_code == 404
    assert box.client.get("/files", params={"path": "dir"}, headers=box.headers).status_code == 400
    entry = box.call("filesystem.Filesystem/Stat", path="dir").json()["entry"]
    assert (entry["type"], entry["path"], entry["owner"]) == ("FILE_TYPE_DIRECTORY", "/home/user/dir", "user")
    names = [item["name"] for item in box.call("filesystem.Filesystem/ListDir", path=".", depth=2).json()["entries"]]
    assert names == ["dir", "a.bin"]
    missing, file = (box.call("filesystem.Filesystem/ListDir", path=path) for path in ("none", "dir/a.bin"))
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert (file.status_code, file.json()["code"]) == (400, "invalid_argument")
    assert box.call("filesystem.Filesystem/MakeDir", path="dir").status_code == 409
    assert box.call("filesystem.Filesystem/Move", source="dir", destination="new").status_code == 200
    assert box.call("filesystem.Filesystem/Remove", path="new").status_code == 200
    assert box.call("filesystem.Filesystem/Stat", path="new").json()["code"] == "not_found"


def test_a_file_takes_the_new_name_or_stays(box: Box) -> None:
    """It was moved into a directory of that name, and the answer described the directory."""
    assert box.run("mkdir named; echo x > moved; echo y > other; echo z > /tmp/away")[0] == 0
    for source in ("moved", "/tmp/away"):  # which is on another file system
        refused = box.call("filesystem.Filesystem/Move", source=source, destination="named")
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")
    assert box.call("filesystem.Filesystem/Move", source="moved", destination="other").status_code == 200
    assert box.call("filesystem.Filesystem/Move", source="/tmp/away", destination="new/name").status_code == 200
    assert box.run("cat other new/name; ls named; rm -r named other new") == (0, "x\nz\n", "")


def test_a_directory_is_watched(box: Box) -> None:
    box.call("filesystem.Filesystem/MakeDir", path="seen")
    watcher = box.call("filesystem.Filesystem/CreateWatcher", path="seen").json()
    box.run("echo x > seen/f; rm seen/f; echo y > seen/g")

    def heard() -> list[tuple[str, str]]:
        told = box.call("filesystem.Filesystem/GetWatcherEvents", **watcher).json()["events"]
        return [(event["name"], event["type"].removeprefix("EVENT_TYPE_")) for event in told]

    assert heard() == [("f", "CREATE"), ("f", "WRITE"), ("f", "REMOVE"), ("g", "CREATE"), ("g", "WRITE")]
    box.run("mv seen/g seen/h; chmod 600 seen/h; mkdir -p seen/d/e; echo z > seen/d/e/z")
    assert heard() == [("g", "RENAME"), ("h", "CREATE"), ("h", "CHMOD"), ("d", "CREATE")]
    assert box.call("filesystem.Filesystem/RemoveWatcher", **watcher).status_code == 200
    assert box.call("filesystem.Filesystem/GetWatcherEvents", **watcher).status_code == 404


def test_all_below_a_directory_is_watched(box: Box) -> None:
    box.run("mkdir -p all/one/two; ln -s /tmp all/link")
    watcher = box.call("filesystem.Filesystem/CreateWatcher", path="all", recursive=True).json()
    other = box.call("filesystem.Filesystem/CreateWatcher", path="all/one").json()
    box.run(
        "echo x > all/one/two/f; mkdir -p all/new/inner; echo y > all/new/inner/g; touch /tmp/unseen; rm -r all/one"
    )
    told = box.call("filesystem.Filesystem/GetWatcherEvents", **watcher).json()["events"]
    found = {(event["name"], event["type"].removeprefix("EVENT_TYPE_")) for event in told}
    wanted = {("one/two/f", "WRITE"), ("new", "CREATE"), ("new/inner", "CREATE"), ("new/inner/g", "WRITE")}
    assert wanted | {("one", "REMOVE"), ("one/two/f", "REMOVE")} <= found, found
    assert not [name for name, _ in found if "unseen" in name]
    also = box.call("filesystem.Filesystem/GetWatcherEvents", **other).json()["events"]
    assert {"name": "two", "type": "EVENT_TYPE_REMOVE"} in also
    for each in (watcher, other):
        assert box.call("filesystem.Filesystem/RemoveWatcher", **each).status_code == 200


def test_cells_remember(box: Box) -> None:
    secret = {"e2b-sandbox-id": box.id, "e2b-traffic-access-token": box.made["trafficAccessToken"]}

    def run(code: str, **more: Any) -> list[dict[str, Any]]:
        return _cell(box, code, **more)

    assert run("x = 'abc'")[-1] == {"type": "end_of_execution"}
    [result] = [item for item in run("print(1); x") if item["type"] == "result"]
    assert (result["text"], result["is_main_result"]) == ("abc", True)
    [result] = [item for item in run("[1, {'a': None}]") if item["type"] == "result"]
    assert (result["text"], result["json"]) == ("[1, {'a': None}]", [1, {"a": None}])
    [error] = [item for item in run("1/0") if item["type"] == "error"]
    assert error["name"] == "ZeroDivisionError"
    texts = [item["text"] for item in run("import os; print(os.environ.get('Q'))", env_vars={"Q": "q"})[:1]]
    assert texts == ["q\n"] and run("print(os.environ.get('Q'))")[0]["text"] == "None\n"
    context = box.client.post("/contexts", json={"language": "bash"}, headers=secret).json()
    assert run("echo $((6*7))", context_id=context["id"])[0]["text"] == "42\n"
    assert context in box.client.get("/contexts", headers=secret).json()
    assert box.client.delete(f"/contexts/{context['id']}", headers=secret).status_code == 204
    gone = {"code": "1", "context_id": context["id"]}
    assert box.client.post("/execute", json=gone, headers=box.headers).status_code == 404
    assert box.client.get("/contexts", headers={"e2b-sandbox-id": box.id}).status_code == 502


_FORGED = """
import json
class Plot:
    def _repr_mimebundle_(self, include=None, exclude=None): return {"application/vnd.plotly.v1+json": {}, **nothing}
nothing = {"application/json": {"not": float("nan")}}
json.dumps = lambda *_, **__: '{"y": [1e999, -1e999, NaN, 1]}'
Plot()
"""


def test_a_display_is_json_whatever_its_numbers(box: Box) -> None:
    """Clients parse with JavaScript's JSON.parse, which takes neither NaN nor Infinity."""
    answer = box.client.post("/execute", json={"code": _FORGED}, headers=box.headers)
    lines = [json.loads(line, parse_constant=pytest.fail) for line in answer.text.splitlines()]
    [shown] = [line for line in lines if line["type"] == "result"]
    assert shown["json"] == shown["extra"]["application/vnd.plotly.v1+json"] == {"y": [None, None, None, 1]}


def _cell(box: Box, code: str, **more: Any) -> list[dict[str, Any]]:
    """Its messages, without those of every 5 s in which it says nothing, as while its context starts."""
    answer = box.client.post("/execute", json={"code": code, **more}, headers=box.headers)
    assert answer.status_code == 200, answer.text
    return [message for message in map(json.loads, answer.text.splitlines()) if message["type"] != "keepalive"]


def test_contexts_are_there_before_they_are_used_and_begin_anywhere(box: Box) -> None:
    names = [context["language"] for context in box.client.get("/contexts", headers=box.headers).json()]
    assert names[:2] == ["python", "javascript"]
    for cwd in ("/tmp", "/home/user/made/here"):
        context = box.client.post("/contexts", json={"language": "bash", "cwd": cwd}, headers=box.headers).json()
        assert _cell(box, "pwd", context_id=context["id"])[0]["text"] == f"{cwd}\n"
        assert box.client.post(f"/contexts/{context['id']}/restart", headers=box.headers).status_code == 204
        said = _cell(box, "pwd; A=1", context_id=context["id"])
        assert said[0]["text"] == f"{cwd}\n" and said[-2]["execution_count"] == 1
    outside = box.client.post("/contexts", json={"cwd": "/proc/none"}, headers=box.headers)
    assert outside.status_code == 400 and "/proc/none" in outside.text
    refused = box.client.post("/execute", json={"code": "1", "language": "ruby"}, headers=box.headers)
    assert refused.status_code == 400 and "unsupported language ruby: use one of python, " in refused.text


@pytest.mark.needs("node")
def test_contexts_of_deno_have_its_names(box: Box) -> None:
    said = _cell(box, "const found: string = Deno.env.get('A'); found", language="deno", env_vars={"A": "for one"})
    assert [item["text"] for item in said if item["type"] == "result"] == ["for one"], said
    again = _cell(box, "import { env } from 'node:process'\n[env.A, Deno.cwd()]", language="deno")
    assert [item["text"] for item in again if item["type"] == "result"] == ["[ 'b', '/home/user' ]"], again


def test_variables_of_one_cell_are_undone(box: Box) -> None:
    """To what they were, which may be something."""
    for env in ({"A": "for one"}, None):
        said = _cell(box, "echo $A ${B-none}", language="bash", env_vars=env)
        assert said[0]["text"] == f"{'for one' if env else 'b'} none\n"


def test_an_answer_breaks_off_where_the_sandbox_is_killed(server: Server) -> None:
    box = Box(server.client)
    sent = server.client.stream("POST", "/execute", json={"code": "print(1)\nwhile 1: pass"}, headers=box.headers)
    with sent as answer, pytest.raises(httpx.RemoteProtocolError):
        lines = (line for line in answer.iter_lines() if "keepalive" not in line)
        assert json.loads(next(lines))["text"] == "1\n"
        assert box.kill() == 204
        assert list(lines) == []


def test_a_directory_is_not_made_over_a_file(box: Box) -> None:
    """It was answered as if the directory existed: `make_dir` returned False, as after a first call."""
    assert box.run("echo x > plain")[0] == 0
    refused = box.call("filesystem.Filesystem/MakeDir", path="plain")
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")
    assert box.run("rm plain")[0] == 0


def test_metrics_are_of_the_time_that_was_asked_for(box: Box) -> None:
    box.run("head -c 100000 /dev/zero > zeros")
    now = int(time.time())
    [sample] = box.client.get(f"/sandboxes/{box.id}/metrics", params={"start": now - 1}).json()
    assert 100_000 <= sample["diskUsed"] < sample["diskTotal"] and 0 < sample["memUsed"] < sample["memTotal"]
    assert sample["cpuUsedPct"] >= 0 and abs(sample["timestampUnix"] - now) < 60
    assert box.client.get(f"/sandboxes/{box.id}/metrics", params={"start": 1, "end": 100}).json() == []


def test_sandboxes_are_found_by_what_they_were_given(box: Box) -> None:
    # The value quoted once, as the newest SDKs have it, twice, as the others, and once in a text that is quoted itself.
    for text in ("x=y%20z", "x=y%2520z", "x%3Dy%2520z"):
        found = box.client.get("/v2/sandboxes", params={"metadata": text, "state": "running"}).json()
        assert [item["sandboxID"] for item in found] == [box.id], text
    for text in ("x=other", "x=", "x=y%20z&w="):
        assert box.client.get("/v2/sandboxes", params={"metadata": text}).json() == [], text
    assert box.client.get(f"/sandboxes/{box.id}").json()["state"] == "running"


def test_a_paused_one_stands_still_and_goes_on(server: Server) -> None:
    box = Box(server.client)
    box.run("echo kept > f")
    boot = box.run("cat /proc/sys/kernel/random/boot_id")
    assert boot[0] == 0 and box.run("cat /proc/sys/kernel/random/boot_id") == boot  # a new one would mean a reboot
    assert server.client.post(f"/sandboxes/{box.id}/pause", json={}).status_code == 204
    assert server.client.post(f"/sandboxes/{box.id}/pause", json={}).status_code == 409
    assert server.client.get("/health", headers=box.headers).status_code == 502
    assert server.client.post(f"/v2/sandboxes/{box.id}/connect", json={"timeout": 60}).status_code == 201
    assert server.client.get("/health", headers=box.headers).status_code == 204
    assert box.run("cat f") == (0, "kept\n", "")
    assert box.run("cat /proc/sys/kernel/random/boot_id") == boot
    assert box.kill() == 204


def test_a_sandbox_that_a_request_resumed_has_its_timeout_again(server: Server) -> None:
    """It had the rest of its lifetime, a day, and was not paused again."""
    box = Box(server.client, timeout=1, autoPause=True, autoResume={"enabled": True})
    until(lambda: server.client.get(f"/sandboxes/{box.id}").json()["state"] == "paused")
    assert box.run("echo x") == (0, "x\n", "")
    found = server.client.get(f"/sandboxes/{box.id}").json()
    begin, end = (datetime.fromisoformat(found[name]) for name in ("startedAt", "endAt"))
    assert found["state"] == "running" and timedelta(minutes=5) <= end - begin < timedelta(hours=12)
    assert box.kill() == 204


def test_a_pause_stops_what_an_ended_command_left_behind(server: Server) -> None:
    box, mark = Box(server.client), f"7{time.monotonic_ns() % 10**9}"
    assert box.run(f"setsid sleep {mark} > /dev/null 2>&1 &")[0] == 0
    until(lambda: states_of_sleep(mark) == ["S"])
    assert server.client.post(f"/sandboxes/{box.id}/pause", json={}).status_code == 204
    until(lambda: states_of_sleep(mark) == ["T"])
    assert server.client.post(f"/v2/sandboxes/{box.id}/connect", json={"timeout": 60}).status_code == 201
    until(lambda: states_of_sleep(mark) == ["S"])
    assert box.kill() == 204


def test_snapshots_and_forks_have_the_files(server: Server) -> None:
    box = Box(server.client)
    box.run("mkdir d; echo one > d/f; ln -s d/f link")
    snapshot = server.client.post(f"/sandboxes/{box.id}/snapshots", json={"name": "named"}).json()
    # It is kept with the snapshot, and is in each list of them.
    too_long = server.client.post(f"/sandboxes/{box.id}/snapshots", json={"name": "x" * 257})
    assert too_long.status_code == 400 and "name" in too_long.json()["message"]
    box.run("echo two > d/f")
    made = Box(server.client, templateID=snapshot["snapshotID"])
    assert made.run("cat link") == (0, "one\n", "")
    [fork] = server.client.post(f"/sandboxes/{box.id}/fork", json={"count": 1, "timeout": 60}).json()
    assert fork["sandbox"]["sandboxID"] not in (box.id, made.id)
    assert snapshot in server.client.get("/snapshots", params={"sandboxID": box.id}).json()
    known = {"templateID": snapshot["snapshotID"], "public": False}
    assert server.client.get("/templates/aliases/named").json() == known
    assert server.client.get("/templates/aliases/base").json() == {"templateID": "base", "public": True}
    assert server.client.get("/templates/aliases/other").status_code == 404
    assert server.client.delete(f"/templates/{snapshot['snapshotID']}").status_code == 204
    assert server.client.delete(f"/templates/{snapshot['snapshotID']}").status_code == 404
    for identity in (box.id, made.id, fork["sandbox"]["sandboxID"]):
        assert server.client.delete(f"/sandboxes/{identity}").status_code == 204


def test_a_name_means_the_last_snapshot_that_has_it(server: Server) -> None:
    """It meant the first: new sandboxes had the oldest files."""
    box, taken = Box(server.client), []
    for text in ("one", "two"):
        box.run(f"echo {text} > f")
        taken.append(server.client.post(f"/sandboxes/{box.id}/snapshots", json={"name": "again"}).json()["snapshotID"])
    for template, text in (("again", "two\n"), ("again:default", "two\n"), (taken[0], "one\n")):
        made = Box(server.client, templateID=template)
        assert made.run("cat f") == (0, text, "")
        made.kill()
    for identity in taken:
        assert server.client.delete(f"/templates/{identity}").status_code == 204
    assert box.kill() == 204


def test_snapshots_are_listed_in_pages(server: Server) -> None:
    box = Box(server.client)
    made = [server.client.post(f"/sandboxes/{box.id}/snapshots", json={}).json() for _ in range(3)]
    query: dict[str, Any] = {"sandboxID": box.id, "limit": 2}
    first = server.client.get("/snapshots", params=query)
    rest = server.client.get("/snapshots", params=query | {"nextToken": first.headers["x-next-token"]})
    assert (first.json(), rest.json()) == (made[:2], made[2:]) and "x-next-token" not in rest.headers
    assert server.client.get("/snapshots", params={"limit": 0}).status_code == 400
    for snapshot in made:
        assert server.client.delete(f"/templates/{snapshot['snapshotID']}").status_code == 204
    assert box.kill() == 204


def test_who_asks_for_less_network_gets_none(start_server: Callable[..., Any], tmp_path: Path, server: Server) -> None:
    """Not what the policy has: what was asked for and is not kept would be believed."""
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"allowProcessSpawn": True, "allowNetwork": True}))
    with start_server("--policy", str(policy)) as open_server:
        boxes = [Box(open_server.client, **more) for more in ({}, {"allow_internet_access": False})]
        boxes.append(Box(open_server.client, network={"denyOut": ["10.0.0.0/8"]}))
        found = [box.run("readlink /proc/self/ns/net")[1].strip() for box in boxes]
        hosts = os.readlink("/proc/self/ns/net")
        assert [each == hosts for each in found] == [True, False, False], found
        path = f"/sandboxes/{boxes[0].id}/network"
        assert open_server.client.put(path, json={"denyOut": ["0.0.0.0/0"]}).status_code == 403
    box = Box(server.client)
    for body, status in (({"denyOut": ["0.0.0.0/0"]}, 204), ({}, 204), ({"allowOut": ["1.1.1.1"]}, 501)):
        assert server.client.put(f"/sandboxes/{box.id}/network", json=body).status_code == status
    box.kill()


def test_a_terminal(box: Box) -> None:
    process = {"cmd": "/bin/bash", "args": ["-c", "stty size; tty"]}
    events = box.stream("process.Process/Start", process=process, pty={"size": {"cols": 100, "rows": 30}})
    shown = b"".join(b64decode(event["event"]["data"]["pty"]) for event in events if "data" in event.get("event", {}))
    assert b"30 100" in shown and b"/dev/pts/" in shown


@pytest.mark.attack("S2-30")
def test_nothing_of_a_sandbox_is_anothers(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """Not by its id, not with another sandbox's secret, not by a URL signed with one, not when it is gone."""
    file = tmp_path / "tokens.json"
    keys = [make_token(file, name) for name in ("one", "two")]
    with start_server("--tokens", str(file)) as server:
        one, two = (Box(server.client, key) for key in keys)
        one.run("echo secret > f")
        assert server.client.get(f"/sandboxes/{one.id}", headers=two.key).status_code == 404
        assert server.client.delete(f"/sandboxes/{one.id}", headers=two.key).status_code == 404
        assert server.client.get("/v2/sandboxes").status_code == 401
        assert len(server.client.get("/v2/sandboxes", headers=two.key).json()) == 1
        gone = Box(server.client, keys[0])
        assert gone.kill() == 204
        crossed = {"e2b-sandbox-id": one.id, "x-access-token": two.headers["x-access-token"]}
        for headers in (crossed, {"e2b-sandbox-id": one.id}, gone.headers, {}):
            for path in ("/files?path=f", "/process.Process/List", "/filesystem.Filesystem/Stat"):
                method = "GET" if "?" in path else "POST"
                answer = server.client.request(method, path, headers=headers, json={"path": "f"})
                assert answer.status_code == 502, (headers, path, answer.text)
                assert answer.json()["message"] == "The sandbox was not found"
        signed = server.client.get("/files", params={"path": "f", "signature": "v1_" + "A" * 43})
        assert signed.status_code == 401
        assert one.run("cat f") == (0, "secret\n", "")


@pytest.mark.attack("PT-15")
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", pytest.param(b"[" * 50_000, id="deep"), b'{"process": 3, "path": 7}', b"\xff"]
)
def test_messages_that_are_none_are_the_callers_fault(box: Box, body: bytes) -> None:
    for name in ("process.Process/SendInput", "process.Process/SendSignal", "filesystem.Filesystem/Move"):
        answer = box.client.post(f"/{name}", content=body, headers=box.headers | {"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
    raw = box.client.post("/process.Process/Start", content=body, headers=box.headers)
    assert raw.status_code == 200 and b"invalid_argument" in raw.content
    made = box.client.post("/v2/sandboxes", content=body + b"!", headers={"content-type": "application/json"})
    assert made.status_code == (413 if len(body) > MAX_VALUES else 400)


def test_they_are_forks_of_one_zygote(server: Server) -> None:
    """One for each took longer to start than all the rest, and most of a sandbox's memory."""

    def children() -> set[str]:
        """Of the process: a list for each thread changes when one of its threads ends."""
        found = set()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                if stat.read_text().rpartition(")")[2].split()[1] == str(server.process.pid):
                    found.add(stat.parent.name)
        return found

    boxes = [Box(server.client)]
    assert boxes[0].run("true")[0] == 0
    before = children()
    boxes += [Box(server.client, envVars={"A": "b"}) for _ in range(2)]
    assert [box.run("true")[0] for box in boxes] == [0, 0, 0]
    assert children() <= before
    assert [box.kill() for box in boxes] == [204] * 3
