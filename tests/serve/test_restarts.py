"""`warmcell serve --state DIR`: what a server had is there again when it starts anew."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until
from tests.serve.conftest import Server, await_workers, make_token
from tests.serve.requests import Box, key_options

Start = Callable[..., Any]


def _reconnect(box: Box, server: Server) -> Box:
    """The same client against another server: it knows the id and the secrets from before."""
    box.client = server.client
    return box


@pytest.mark.parametrize("has_key", [False, True])
def test_a_stopped_server_finds_its_sandboxes_again(start_server: Start, tmp_path: Path, has_key: bool) -> None:
    options = ("--state", str(tmp_path / "state"), *key_options(tmp_path, has_key))
    with start_server(*options) as server:
        box = Box(server.client, metadata={"who": "me"}, envVars={"COLOUR": "red"}, timeout=500)
        assert box.run("echo kept > file; mkdir d; ln -s file link")[0] == 0
        own = server.client.post(
            "/v1/sandboxes", json={"env": {"WORD": "hi"}, "metadata": {"a": "b"}, "lifetime": 400}
        ).json()
        server.client.put(f"/v1/sandboxes/{own['id']}/files/note.txt", content=b"note")
        before = server.client.get(f"/sandboxes/{box.id}").json()
        parked = Box(server.client, timeout=300, autoPause=True)
        assert parked.run("echo parked > file")[0] == 0
        assert server.client.post(f"/sandboxes/{parked.id}/timeout", json={"timeout": 1}).status_code == 204
        until(lambda: server.client.get(f"/sandboxes/{parked.id}").json()["state"] == "paused")
        status, said = server.stop()
        assert status == 0 and "3 sandboxes are saved" in said
    with start_server(*options) as server:
        _reconnect(box, server)
        after = server.client.get(f"/sandboxes/{box.id}").json()
        assert (after["metadata"], after["state"]) == ({"who": "me"}, "running")
        assert after["startedAt"][:19] == before["startedAt"][:19] and after["endAt"][:19] == before["endAt"][:19]
        assert box.run("cat file link; echo $COLOUR; ls")[1] == "kept\nkept\nred\nd\nfile\nlink\n"
        again = server.client.get(f"/v1/sandboxes/{own['id']}").json()
        assert again["metadata"] == {"a": "b"} and abs(again["expires"] - own["expires"]) < 1
        ran = server.client.post(f"/v1/sandboxes/{own['id']}/sh", json={"script": "cat note.txt; echo $WORD"}).json()
        assert ran["stdout"] == "notehi\n"
        connect = f"/v2/sandboxes/{_reconnect(parked, server).id}/connect"
        assert server.client.post(connect, json={"timeout": 300}).status_code == 201  # it was paused
        assert parked.run("cat file")[1] == "parked\n"
        assert box.kill() == parked.kill() == 204
        assert server.client.delete(f"/v1/sandboxes/{own['id']}").status_code == 204
        homes = tmp_path / "state/worker-0/homes"
        records = tmp_path / "state/worker-0/records"
        until(lambda: not list(records.iterdir()))
    with start_server(*options) as server:
        assert server.client.get("/v1/sandboxes").json() == []
        assert list(homes.iterdir()) == []


@pytest.mark.parametrize("has_key", [False, True])
def test_a_killed_server_finds_paused_sandboxes_and_snapshots(
    start_server: Start, tmp_path: Path, has_key: bool
) -> None:
    options = ("--state", str(tmp_path / "state"), *key_options(tmp_path, has_key))
    with start_server(*options) as server:
        box = Box(server.client, timeout=300)
        box.run("echo one > file")
        taken = server.client.post(f"/sandboxes/{box.id}/snapshots", json={"name": "first"}, headers=box.key).json()
        box.run("echo two > file")
        assert server.client.post(f"/sandboxes/{box.id}/pause", json={}, headers=box.key).status_code == 204
        server.stop(signal.SIGKILL)
    with start_server(*options) as server:
        _reconnect(box, server)
        (listed,) = server.client.get("/v2/sandboxes", params={"state": "paused"}).json()
        assert listed["sandboxID"] == box.id
        assert server.client.post(f"/v2/sandboxes/{box.id}/connect", json={"timeout": 300}).status_code == 201
        assert box.run("cat file")[1] == "two\n"
        copy = Box(server.client, templateID="first")
        assert copy.run("cat file")[1] == "one\n"
        assert server.client.get("/snapshots").json()[0]["snapshotID"] == taken["snapshotID"]
        assert server.client.post("/volumes", json={"name": "plain"}).status_code == (501 if has_key else 201)
        server.stop(signal.SIGKILL)
    with start_server(*options) as server:  # running ones too, with the files that they had, or with a key: saved last
        assert _reconnect(box, server).run("cat file")[1] == "two\n"


def test_what_cannot_come_back_is_named(start_server: Start, tmp_path: Path) -> None:
    options = ("--state", str(tmp_path / "state"))
    with start_server(*options) as server:
        lost, expired, fine = (Box(server.client, timeout=300) for _ in range(3))
        sleeper = {"process": {"cmd": "/bin/sleep", "args": ["600"]}, "stdin": False}
        headers = fine.headers | {"content-type": "application/connect+json"}
        started = fine.client.stream("POST", "/process.Process/Start", content=_frame(sleeper), headers=headers)
        with started as answer:
            assert b'"pid"' in next(answer.iter_bytes())  # it runs from now on, and goes on without its client
        server.stop()
    records = tmp_path / "state/worker-0/records"
    for box, change in ((lost, {"home": "../records"}), (expired, {"expires": 1.0})):
        path = records / f"{box.id}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (records / "broken.json").write_text("{")
    with start_server(*options) as server:
        assert [entry["sandboxID"] for entry in server.client.get("/v2/sandboxes").json()] == [fine.id]
        said = server.stop()[1]
    assert f"cannot restore sandbox {lost.id}: its files are gone" in said
    assert f"cannot restore sandbox {expired.id}: it expired" in said
    assert f"restored sandbox {fine.id}; lost: 1 processes" in said
    assert "cannot read broken.json" in said


def test_damaged_records_stop_nothing_else(start_server: Start, tmp_path: Path) -> None:
    """A record that was changed leads nowhere else, and the server starts whatever is in it."""
    options = ("--state", str(tmp_path / "state"))
    damage: list[dict[str, Any]] = [{"own": []}, {"own": {}}, {"expires": float("nan")}, {"network": [1]}]
    with start_server(*options) as server:
        hit = [Box(server.client, timeout=300) for _ in damage]
        fine = Box(server.client, timeout=300)
        server.stop()
    worker = tmp_path / "state/worker-0"
    for box, change in zip(hit, damage, strict=True):
        path = worker / f"records/{box.id}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (worker / "records/deep.json").write_text("[" * 200_000)
    os.mkfifo(worker / "records/pipe.json")
    (worker / "records/link.json").symlink_to("/dev/zero")
    (worker / "volumes/...json").write_text(json.dumps({"id": "..", "name": "all", "tenant": "", "token": "x"}))
    with start_server(*options) as server:
        assert [entry["sandboxID"] for entry in server.client.get("/v2/sandboxes").json()] == [fine.id]
        assert server.client.get("/volumes").json() == []
        content = server.client.get("/volumecontent/../dir", headers={"authorization": "Bearer x"})
        assert content.status_code == 404
        said = server.stop()[1]
    for name in ("deep.json", "pipe.json", "link.json", "...json"):
        assert f"cannot read {name}" in said
    assert (worker / "records").is_dir()


def _frame(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return b"\0" + len(data).to_bytes(4, "big") + data


def test_state_with_workers_and_tenants(start_server: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    keys = [make_token(tokens, name) for name in ("one", "two")]
    options = ("--state", str(tmp_path / "state"), "--tokens", str(tokens), "--workers", "2")
    with start_server(*options) as server:
        await_workers(server, {"x-api-key": keys[0]})
        boxes = [Box(server.client, key, metadata={"key": key}) for key in keys]
        for number, box in enumerate(boxes):
            box.run(f"echo {number} > file")
        server.stop()
    with start_server(*options) as server:
        await_workers(server, {"x-api-key": keys[0]})
        for number, box in enumerate(boxes):
            assert _reconnect(box, server).run("cat file")[1] == f"{number}\n"
            other = server.client.get(f"/sandboxes/{box.id}", headers={"x-api-key": keys[1 - number]})
            assert other.status_code == 404
        server.stop()
    with pytest.raises(AssertionError, match="2 workers"), start_server(*options[:-1], "3"):
        pass


def test_one_server_for_one_state(start_server: Start, tmp_path: Path) -> None:
    options = ("--state", str(tmp_path / "state"))
    with start_server(*options), pytest.raises(AssertionError, match="in use"), start_server(*options):
        pass
