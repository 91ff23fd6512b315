"""Every way to start something counts: `--runs` and `--max-timeout` hold at all routes, and watches have shares."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import until
from tests.serve.conftest import Server, make_token
from tests.serve.requests import Box, cell, stream_events

Start = Callable[..., Any]
#: The start of an E2B process and of a process of ours; both go on for a minute.
SLEEP = {"cmd": "/bin/sleep", "args": ["60"]}


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    return file, make_token(file, "one", "--runs", "1", "--sandboxes", "8")


@pytest.fixture(scope="module")
def limited(start_server: Start, token: tuple[Path, str]) -> Iterator[Server]:
    with start_server("--tokens", str(token[0])) as server:
        server.client.headers["x-api-key"] = token[1]
        yield server


@pytest.fixture
def box(limited: Server, token: tuple[Path, str]) -> Iterator[Box]:
    made = Box(limited.client, token[1])
    yield made
    made.kill()


def start(box: Box) -> httpx.Response:
    """Start a process and hang up: it goes on."""
    data = json.dumps({"process": SLEEP, "stdin": False}).encode()
    kind = {"content-type": "application/connect+json"}
    sent = b"\0" + len(data).to_bytes(4, "big") + data
    with box.client.stream("POST", "/process.Process/Start", content=sent, headers=box.headers | kind) as answer:
        answer.extensions["first"] = next(answer.iter_bytes())
        return answer


@pytest.mark.attack("S3-27")
def test_cells_end_at_the_servers_timeout(start_server: Start) -> None:
    with start_server("--max-timeout", "2") as server:
        answer = cell(Box(server.client), code="import time; time.sleep(100)")
    ended = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["name"] for line in ended if line["type"] == "error"] == ["ExecutionTimeout"], ended


@pytest.mark.attack("S3-27")
@pytest.mark.parametrize("door", ["cell", "context", "process", "session", "restart", "v1 process"])
def test_everything_that_starts_waits_for_a_slot(limited: Server, box: Box, door: str) -> None:
    """The token has one slot, and a run has it."""
    client = limited.client
    at = f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"
    session = client.post(f"{at}/sessions", json={}).json()["id"]
    assert cell(box, code="1").status_code == 200  # its context has started
    calls: dict[str, Callable[[], httpx.Response]] = {
        "cell": lambda: cell(box, code="print('ran')"),
        "context": lambda: client.post("/contexts", json={}, headers=box.headers),
        "process": lambda: start(box),
        "session": lambda: client.post(f"{at}/sessions", json={}),
        "restart": lambda: client.post(f"{at}/sessions/{session}/restart"),
        "v1 process": lambda: client.post(f"{at}/processes", json={"command": ["true"]}),
    }
    endless = {"language": "python", "code": "print(1, flush=True)\nwhile True: pass", "timeout": 60}
    with ThreadPoolExecutor(1) as threads:
        with stream_events(client, "POST", "/v1/run", json=endless) as events:
            assert next(events)[0] == "stdout"  # the run has the slot
            call = threads.submit(calls[door])
            time.sleep(1)
            assert not call.done()
        assert call.result().status_code < 300  # the client of the run has left
    client.delete(at)


@pytest.mark.attack("S3-27")
def test_processes_that_go_on_are_bounded_by_the_number_of_runs(limited: Server, box: Box) -> None:
    at = f"/v1/sandboxes/{limited.client.post('/v1/sandboxes', json={}).json()['id']}"
    assert "start" in start(box).extensions["first"].decode()
    assert "resource_exhausted" in start(box).extensions["first"].decode()
    body = {"command": ["sleep", "60"]}
    assert limited.client.post(f"{at}/processes", json=body).status_code == 429
    (found,) = box.call("process.Process/List").json()["processes"]
    ended = {"process": {"pid": found["pid"]}, "signal": "SIGNAL_SIGKILL"}
    assert box.call("process.Process/SendSignal", **ended).status_code == 200
    until(lambda: limited.client.post(f"{at}/processes", json=body).status_code == 201)
    limited.client.delete(at)


@pytest.mark.attack("S3-21")
def test_a_tenant_has_a_share_of_the_users_watches(start_server: Start, tmp_path: Path) -> None:
    """Each watch is an inotify instance; the kernel has 128 for each user, guests included."""
    file = tmp_path / "tokens.json"
    greedy, other = (make_token(file, name, "--sandboxes", "32") for name in ("greedy", "other"))
    with start_server("--tokens", str(file)) as server, ExitStack() as streams:

        def watch(token: str) -> int:
            key = {"x-api-key": token}
            at = f"/v1/sandboxes/{server.client.post('/v1/sandboxes', json={}, headers=key).json()['id']}"
            stream = server.client.stream("GET", f"{at}/watch", headers=key)
            return int(streams.enter_context(stream).status_code)

        answers = [watch(greedy) for _ in range(24)]
        instances = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
        assert answers.count(200) == min(24, max(1, instances // 8)) and set(answers) <= {200, 429}
        assert watch(other) == 200
