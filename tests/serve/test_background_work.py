"""Runs and cells that continue without their client, and an operator who ends them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import until
from tests.serve.conftest import Server, make_token

from warmcell.interfaces.serve.background_jobs import BackgroundJob, BackgroundJobs, EventLog, KeptEvents
from warmcell.interfaces.serve.event_streams import EventStream, format_event
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.tokens import SCOPES

Start = Callable[..., AbstractContextManager[Server]]
WAITS = {"language": "python", "code": "import time; print('first', flush=True); time.sleep(300)", "timeout": 300}


def key(token: str) -> dict[str, str]:
    return {"x-api-key": token}


def events_of(client: httpx.Client, path: str, headers: Any = None) -> Iterator[tuple[int, str, Any]]:
    with client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, response.read()
        fields: dict[str, str] = {}
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "data" in fields:
                yield int(fields["id"]), fields["event"], json.loads(fields["data"])
                fields = {}


def test_a_run_continues_without_its_client(server: Server) -> None:
    code = "import sys, time; print('first', flush=True); time.sleep(2); print('last'); sys.exit(3)"
    body = {"language": "python", "code": code, "timeout": 60, "files": {"go": ""}, "fetch_files": ["go"]}
    made = server.client.post("/v1/runs", json=body)
    assert made.status_code == 201, made.text
    at = f"/v1/runs/{made.json()['id']}"
    reading = events_of(server.client, f"{at}/events")
    assert next(reading)[2]["text"].startswith("first\n")
    reading.close()  # the client disconnects

    whole = [*events_of(server.client, f"{at}/events")]
    assert "".join(data["text"] for _, name, data in whole[:-1]) == "first\nlast\n"
    number, name, result = whole[-1]
    assert (name, result["status"], result["exit_code"], result["files"]) == ("result", "success", 3, {"go": ""})
    assert "stdout" not in result
    assert [*events_of(server.client, f"{at}/events?from={number - 1}")] == whole[-1:]
    listed = {run["id"]: run for run in server.client.get("/v1/runs").json()}
    assert listed[made.json()["id"]]["is_running"] is False
    assert server.client.delete(at).status_code == 204
    assert server.client.get(at).status_code == 404


def test_a_cell_continues_without_its_client_and_its_question_is_kept(server: Server) -> None:
    sandbox = f"/v1/sandboxes/{server.client.post('/v1/sandboxes', json={}).json()['id']}"
    session = server.client.post(f"{sandbox}/sessions", json={}).json()["id"]
    at = f"{sandbox}/sessions/{session}"
    body = {"code": "x = input('name? '); print('hello', x)", "answers_input": True}
    cell = server.client.post(f"{at}/cells", json=body).json()["id"]
    for _ in range(2):  # the second time as a client that was reloaded
        reading = events_of(server.client, f"{at}/cells/{cell}/events")
        assert next(event for event in reading if event[1] == "input")[2] == {"prompt": "name? "}
        reading.close()
    assert server.client.get(f"{at}/cells").json()[0]["is_running"]
    assert server.client.post(f"{at}/input", json={"text": "Ada"}).status_code == 204
    names = [(name, data.get("text")) for _, name, data in events_of(server.client, f"{at}/cells/{cell}/events")]
    assert ("answered", None) in names and ("stdout", "hello Ada\n") in names and names[-1][0] == "result"
    assert server.client.get(f"{at}/variables").json()["x"] == "'Ada'"
    assert server.client.get(f"{at}/cells/unknown/events").status_code == 404
    server.client.delete(sandbox)


@pytest.fixture(scope="module", params=["1", "2"])
def guarded(request: Any, start_server: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with two tenants and an operator, in one process and with workers."""
    place: Path = tmp_path_factory.mktemp("tokens")
    file = place / "tokens.json"
    every = [word for scope in SCOPES for word in ("--scope", scope)]
    tokens = {"operator": make_token(file, "operator", *every), "one": make_token(file, "one")}
    tokens["two"] = make_token(file, "two")
    options = ("--tokens", str(file), "--audit", str(place / "audit"), "--workers", request.param)
    with start_server(*options) as server:
        yield server, tokens


def test_nobody_sees_the_runs_of_another_tenant(guarded: Any) -> None:
    server, tokens = guarded
    made = server.client.post("/v1/runs", json=WAITS, headers=key(tokens["one"])).json()["id"]
    at = f"/v1/runs/{made}"
    for path in (at, f"{at}/events"):
        assert server.client.get(path, headers=key(tokens["two"])).status_code == 404
    assert server.client.delete(at, headers=key(tokens["two"])).status_code == 404
    assert server.client.get("/v1/runs", headers=key(tokens["two"])).json() == []
    assert server.client.delete(at, headers=key(tokens["one"])).status_code == 204


def test_an_operator_ends_runs_and_sandboxes(guarded: Any) -> None:
    server, tokens = guarded
    client, operator, one = server.client, key(tokens["operator"]), key(tokens["one"])
    answers: list[httpx.Response] = []
    asking = httpx.Client(base_url=server.url, timeout=120, trust_env=False)
    waiting = threading.Thread(target=lambda: answers.append(asking.post("/v1/run", json=WAITS, headers=one)))
    waiting.start()
    background = client.post("/v1/runs", json=WAITS, headers=one).json()["id"]
    sandbox = client.post("/v1/sandboxes", json={}, headers=one).json()["id"]

    def running() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.get("/v1/activity", headers=operator).json()["runs"]
        return [run for run in found if run["state"] == "running"]

    until(lambda: len(running()) == 2)
    for run in running():
        at = f"/v1/activity/runs/{run['id']}"
        assert client.delete(at, headers=one).status_code == 403
        assert client.delete(at, headers=operator).status_code == 204
        until(lambda at=at: client.delete(at, headers=operator).status_code == 404)  # type: ignore[misc]
    waiting.join(60)
    asking.close()
    assert answers[0].status_code == 409 and "operator" in answers[0].json()["error"]["message"]
    *_, (_, name, data) = events_of(client, f"/v1/runs/{background}/events", one)
    assert name == "error" and "operator" in data["error"]["message"]
    assert client.delete(f"/v1/activity/sandboxes/{sandbox}", headers=one).status_code == 403
    assert client.delete(f"/v1/activity/sandboxes/{sandbox}", headers=operator).status_code == 204
    assert client.get(f"/v1/sandboxes/{sandbox}", headers=one).status_code == 404


def test_the_audit_is_read_by_operators_only(guarded: Any) -> None:
    server, tokens = guarded
    client = server.client
    assert client.get("/v1/audit", headers=key(tokens["one"])).status_code == 403

    def newest() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.get("/v1/audit?limit=5", headers=key(tokens["operator"])).json()["records"]
        return found

    until(newest)  # a worker writes the record of a request after the response
    assert len(newest()) <= 5
    until(lambda: client.get("/v1/audit", headers=key(tokens["operator"])).json()["records"][0]["route"] == "/v1/audit")


def test_a_client_learns_who_it_is(guarded: Any, server: Server) -> None:
    there, tokens = guarded
    who = there.client.get("/v1/identity", headers=key(tokens["one"])).json()
    assert who["name"] == "one" and "operate" not in who["scopes"] and who["requires_token"] and who["has_audit"]
    assert there.client.get("/v1/identity", headers=key("wrong")).status_code == 401
    open_to_all = server.client.get("/v1/identity").json()
    assert open_to_all["scopes"] == list(SCOPES) and not open_to_all["requires_token"]
    assert server.client.get("/v1/audit").status_code == 404


async def test_a_log_keeps_the_newest_events_and_counts_the_others() -> None:
    log = EventLog(limit=400)
    for number in range(20):
        await log.emit("stdout", {"text": f"line {number}"})
    log.end()
    whole = [text async for text in log.read(0)]
    assert len(whole) < 10 and "dropped" in whole[0] and "line 19" in whole[-1]
    skipped = json.loads(whole[0].partition("data: ")[2])["events"]
    assert f"line {skipped}" in whole[1]
    assert [text async for text in log.read(19)] == whole[-1:]


@pytest.mark.attack("S3-10")
async def test_the_jobs_of_a_tenant_keep_a_bounded_sum() -> None:
    """One event may be larger than the bound of a log: a result with displays of many megabytes."""
    kept = KeptEvents(limit=100_000)
    logs = [EventLog(limit=10_000, kept=kept) for _ in range(20)]
    for log in logs:
        await log.emit("stdout", {"text": "short"})
        await log.emit("result", {"text": "x" * 30_000})
        log.end()
    assert 30_000 < sum(log.size for log in logs) < 140_000
    (dropped,) = [text async for text in logs[0].read(0)]
    assert "dropped" in dropped and '"events": 2' in dropped
    assert "x" * 30_000 in [text async for text in logs[-1].read(0)][-1]
    await logs[0].emit("stdout", {"text": "later"})
    assert "later" in [text async for text in logs[0].read(2)][-1]
    del logs[1:], log  # what was removed does not count
    for _ in range(200):
        await logs[0].emit("stdout", {"text": "y" * 900})
    assert 9_000 < logs[0].size <= 10_000


@pytest.mark.attack("S3-17")
async def test_others_get_their_turn_while_a_large_event_is_kept_and_read() -> None:
    """A display of a background cell was encoded in one turn of the event loop, and sent in another."""
    import asyncio

    turns, sent, data = 0, list[dict[str, Any]](), {"text": "\x01" * 2_000_000}

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    log, counting = EventLog(), asyncio.ensure_future(count_turns())
    await log.emit("display", data)
    until_kept = turns
    log.end()
    await EventStream(log.read(0))({"type": "http"}, receive, send)
    counting.cancel()
    bodies = [message.get("body", b"") for message in sent]
    assert b"".join(bodies).decode() == format_event("display", data, "1")
    assert until_kept > 50 and turns > until_kept + 10 and max(map(len, bodies)) < 300_000


async def test_jobs_are_bounded_and_the_oldest_ended_one_is_forgotten() -> None:
    import asyncio

    async def forever(emit: Any) -> object:
        await asyncio.Event().wait()
        return None

    async def at_once(emit: Any) -> object:
        return None

    jobs = BackgroundJobs(2)
    first, ended = jobs.start(forever, {}, KeptEvents()), jobs.start(at_once, {}, KeptEvents())
    await ended.task
    second = jobs.start(forever, {}, KeptEvents())
    assert [job.id for job in jobs.all()] == [first.id, second.id]
    with pytest.raises(HttpError, match="already running"):
        jobs.start(at_once, {}, KeptEvents())
    await jobs.aclose()
    assert not first.is_running and jobs.all() == []
    last = [text async for text in BackgroundJob.events(first, 0)]
    assert "the job was ended" in last[0]
