"""Several workers behind one front: one queue, a tenant's sandboxes together, lost workers reported as our fault."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import islice, pairwise
from typing import Any

import httpx
import pytest
from tests.helpers import PATIENCE, until
from tests.serve.conftest import Server, arguments_of, await_workers, disconnect_after, make_token, worker_pids
from tests.serve.requests import Box
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from warmcell.interfaces.serve.front.relay import headers_to_forward
from warmcell.interfaces.serve.sandbox_registry import worker_of_id, worker_suffix
from warmcell.interfaces.serve.tokens import SCOPES
from warmcell.observe.metrics import merge_metrics

RUN = {"language": "python", "code": "print(1)", "timeout": 60}
LONG = RUN | {"code": "import time; print('begun', flush=True); time.sleep(300)", "timeout": 300}
Start = Callable[..., Any]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    every = [word for scope in SCOPES for word in ("--scope", scope)]
    made = {"one": make_token(file, "one", *every, "--runs", "1", "--sandboxes", "1")}
    made["two"] = make_token(file, "two", *every)
    made["slow"] = make_token(file, "slow", "--connections", "1")
    return made | {"file": str(file)}


@pytest.fixture(scope="module")
def front(start_server: Start, tokens: dict[str, str]) -> Iterator[Server]:
    with start_server("--workers", "2", "--tokens", tokens["file"]) as server:
        await_workers(server, key(tokens))
        yield server


def key(tokens: dict[str, str], name: str = "two") -> dict[str, str]:
    return {"x-api-key": tokens[name]}


def test_every_door_is_there(front: Server, tokens: dict[str, str]) -> None:
    client, mine = front.client, key(tokens)
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.post("/v1/run", json=RUN).status_code == 401
    assert client.post("/v1/run", json=RUN, headers=mine).json()["stdout"] == "1\n"
    ran = client.post("/run_code", json={"language": "python", "code": "print(2)"}, headers=mine).json()
    assert (ran["status"], ran["run_result"]["stdout"]) == ("Success", "2\n")
    assert client.get("/nothing").json()["error"]["code"] == "http.404"
    assert client.get("/v1/run").headers["allow"] == "POST"
    refused = client.get("/healthz", headers={"host": "evil.example"})
    assert refused.status_code == 403 and refused.headers["x-content-type-options"] == "nosniff"
    told = client.get("/metrics", headers=mine).text
    assert "warmcell_runs_total{" in told and client.get("/metrics").status_code == 401
    history = client.get("/v1/history", headers=mine).json()
    assert sum(step["outcomes"].get("ok", 0) for step in history["steps"]) >= 1
    with client.stream("GET", "/v1/history", headers=mine | {"accept": "text/event-stream"}) as live:
        words = list(islice(live.iter_lines(), 4))
    assert [line for line in words if line.startswith("event")] == ["event: history"] * 2
    assert client.get("/v1/history", headers={"accept": "text/event-stream"}).status_code == 401
    assert client.get("/").headers["content-security-policy"].startswith("default-src 'none'")
    with client.stream("POST", "/v1/run", json=RUN, headers=mine | {"accept": "text/event-stream"}) as stream:
        assert "event: result" in list(stream.iter_lines())


def test_what_stays_of_a_tenant_is_in_one_worker(front: Server, tokens: dict[str, str]) -> None:
    client, mine = front.client, key(tokens)
    box = Box(client, tokens["two"])
    made = client.post("/v1/sandboxes", json={}, headers=mine).json()
    assert box.id[-2:] == made["id"][-2:] and box.id[-2:] in ("00", "01")
    assert box.run("cat; echo 42") == (0, "42\n", "")
    assert len(client.get("/v1/activity", headers=mine).json()["sandboxes"]) >= 2
    assert {one["id"] for one in client.get("/v1/sandboxes", headers=mine).json()} >= {made["id"]}
    assert client.get(f"/v1/sandboxes/{made['id']}", headers=key(tokens, "one")).status_code == 404
    assert client.put(f"/v1/sandboxes/{made['id']}/files/a", content=b"#" * 1_000_000, headers=mine).status_code == 204
    assert client.get(f"/v1/sandboxes/{made['id']}/files/a", headers=mine).content == b"#" * 1_000_000
    assert box.kill() == client.delete(f"/v1/sandboxes/{made['id']}", headers=mine).status_code == 204
    first = client.post("/v1/sandboxes", json={}, headers=key(tokens, "one"))
    assert client.post("/v1/sandboxes", json={}, headers=key(tokens, "one")).status_code == 429
    client.delete(f"/v1/sandboxes/{first.json()['id']}", headers=key(tokens, "one"))


def test_e2bs_sandboxes_are_made_listed_and_killed(front: Server, tokens: dict[str, str]) -> None:
    """As its clients ask for it: some of it by the key, some by the sandbox's own id and secret."""
    client, mine = front.client, key(tokens)
    boxes = [Box(client, tokens["two"], metadata={"of": "mine"}) for _ in range(3)]
    assert [box.run(f"echo {number} | tee f; pwd")[1] for number, box in enumerate(boxes)] == [
        f"{number}\n/home/user\n" for number in range(3)
    ]
    for path in ("/sandboxes", "/v2/sandboxes"):
        listed = client.get(path, params={"metadata": "of=mine"}, headers=mine).json()
        assert {one["sandboxID"] for one in listed} == {box.id for box in boxes}
        assert client.get(path, headers=key(tokens, "one")).json() == []
    assert client.post(f"/v2/sandboxes/{boxes[1].id}/connect", json={"timeout": 60}, headers=mine).status_code < 300
    asked = {"path": "/home/user/f", "username": "user"}
    assert client.get("/files", params=asked, headers=boxes[1].headers).content == b"1\n"
    assert client.get(f"/sandboxes/{boxes[2].id}", headers=mine).json()["state"] == "running"
    assert [box.kill() for box in boxes] == [204] * 3
    assert client.get("/v2/sandboxes", params={"metadata": "of=mine"}, headers=mine).json() == []
    assert boxes[0].kill() == 404


def test_a_signed_link_is_found_wherever_it_belongs(front: Server, tokens: dict[str, str]) -> None:
    """It names no tenant, and each worker is as likely to know it."""
    import base64
    import hashlib

    box = Box(front.client, tokens["two"])
    token = box.made["envdAccessToken"]
    for operation, method in (("write", "POST"), ("read", "GET")):
        digest = hashlib.sha256(f"a.txt:{operation}:user:{token}".encode()).digest()
        signature = "v1_" + base64.b64encode(digest).decode().rstrip("=")
        asked = {"path": "a.txt", "username": "user", "signature": signature}
        content = b"signed" if method == "POST" else None
        headers = {"content-type": "application/octet-stream"}
        answer = front.client.request(method, "/files", params=asked, content=content, headers=headers)
        assert answer.status_code == 200, answer.text
    assert answer.content == b"signed"
    refused = front.client.post("/files", params=asked, content=b"#" * 5_000_000, headers=headers)
    assert refused.status_code == 401  # by each in turn, before it has read all that
    assert front.client.get("/files", params=asked | {"signature": "v1_no"}).status_code == 401
    late = hashlib.sha256(f"a.txt:read:user:{token}:1".encode()).digest()
    asked |= {"signature": "v1_" + base64.b64encode(late).decode().rstrip("="), "signature_expiration": "1"}
    assert "expired" in front.client.get("/files", params=asked).text  # which only the worker that has it knows
    box.kill()


def test_a_web_socket_reaches_the_worker_of_its_tenant(front: Server, tokens: dict[str, str]) -> None:
    mine = key(tokens)
    url = front.url.replace("http:", "ws:") + "/v1/run/ws"
    with connect(url, additional_headers=mine, open_timeout=PATIENCE) as socket:
        socket.send(json.dumps(RUN | {"code": "print(input() * 300_000)"}))
        socket.send(b"abc\n")
        heard = [message for message in socket if isinstance(message, bytes)]
    assert b"".join(piece[1:] for piece in heard) == b"abc" * 300_000 + b"\n"
    for headers, status in ((mine | {"origin": "http://evil.example"}, 403), ({"x-api-key": "wc_wrong"}, 401)):
        with pytest.raises(InvalidStatus) as refused:
            connect(url, additional_headers=headers, open_timeout=PATIENCE)
        assert refused.value.response.status_code == status


def test_a_quota_of_runs_holds_over_all_workers(front: Server, tokens: dict[str, str]) -> None:
    code = "import time; a = time.time(); time.sleep(0.1); print(a, time.time())"

    def run(_: int) -> list[float]:
        ran = front.client.post("/v1/run", json=RUN | {"code": code}, headers=key(tokens, "one"))
        return list(map(float, ran.json()["stdout"].split()))

    with ThreadPoolExecutor(4) as threads:
        times = sorted(threads.map(run, range(4)))
    assert all(before[1] <= after[0] for before, after in pairwise(times)), times


def test_what_a_tenant_may_ask_does_not_grow_with_the_workers(front: Server, tokens: dict[str, str]) -> None:
    mine = key(tokens, "slow")
    with front.client.stream("POST", "/v1/run", json=LONG, headers=mine | {"accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()  # kept: the stream ends with it
        assert next(lines) == "event: stdout"
        refused = front.client.post("/v1/run", json=RUN, headers=mine)  # which another worker would carry out
        assert (refused.status_code, refused.headers.get("retry-after")) == (429, "1"), refused.text
        assert front.client.delete("/sandboxes/none", headers=mine).status_code == 404  # ends something


def test_a_run_ends_with_its_client(front: Server, tokens: dict[str, str]) -> None:
    mine = key(tokens, "one")
    with disconnect_after(front, "/v1/run", LONG, mine):
        until(lambda: len(front.client.get("/v1/activity", headers=key(tokens)).json()["runs"]) == 1)
    began = time.monotonic()
    assert front.client.post("/v1/run", json=RUN, headers=mine).json()["stdout"] == "1\n"  # the one place is free
    assert time.monotonic() - began < PATIENCE


def test_the_end_of_a_worker_is_our_fault_and_costs_its_runs_alone(front: Server, tokens: dict[str, str]) -> None:
    mine = key(tokens)
    answers: dict[str, Any] = {}

    def ask(path: str, body: dict[str, Any]) -> None:
        answers[path] = front.client.post(path, json=body, headers=mine)

    def listen() -> None:
        headers = mine | {"accept": "text/event-stream"}
        with front.client.stream("POST", "/v1/run", json=LONG, headers=headers) as stream:
            answers["stream"] = stream.read().decode()

    long_fusion = {"language": "python", "code": LONG["code"], "run_timeout": 60}
    long_piston = {"language": "python", "version": "*", "files": [{"content": LONG["code"]}], "run_timeout": 60_000}
    asked = {"/v1/run": LONG, "/run_code": long_fusion, "/api/v2/execute": long_piston}
    threads = [threading.Thread(target=ask, args=item) for item in asked.items()]
    threads.append(threading.Thread(target=listen))
    for thread in threads:
        thread.start()
    until(lambda: "warmcell_runs_running 4\n" in front.client.get("/metrics", headers=mine).text)
    before = worker_pids(front)
    assert len(before) == 2  # else the answers would be waited for in vain
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert answers["/v1/run"].status_code == 503 and answers["/v1/run"].headers["retry-after"] == "1"
    told = answers["/v1/run"].json()["error"]
    assert (told["code"], told["fault"], told["retryable"]) == ("sandbox.worker_lost", "host", True)
    assert answers["/run_code"].status_code == 504
    assert answers["/api/v2/execute"].status_code >= 500
    assert answers["stream"].rstrip().splitlines()[-2] == "event: error" and '"fault": "host"' in answers["stream"]
    until(lambda: len(set(worker_pids(front)) - set(before)) == 2)
    await_workers(front, key(tokens))
    assert front.client.post("/v1/run", json=RUN, headers=mine).json()["stdout"] == "1\n"


def test_a_worker_answers_its_connections_without_the_front(start_server: Start) -> None:
    """Where nothing is shared; a run needs a place in the one queue. The front answers while no worker is ready."""
    with start_server("--workers", "2") as server:
        await_workers(server)
        address = httpx.URL(server.url)
        client = HTTPConnection(address.host, address.port, timeout=PATIENCE)
        assert is_healthy(client) and is_healthy(client)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            assert is_healthy(client)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
            client.close()


def test_an_idle_connection_outlives_its_worker(front: Server, tokens: dict[str, str]) -> None:
    address = httpx.URL(front.url)
    client = HTTPConnection(address.host, address.port, timeout=PATIENCE)
    assert is_healthy(client)
    before = worker_pids(front)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(set(worker_pids(front)) - set(before)) == 2)
    await_workers(front, key(tokens))
    assert is_healthy(client)
    client.close()


def is_healthy(client: HTTPConnection) -> bool:
    """Over the same connection as before, unless the last response closed it."""
    client.auto_open = client.sock is None
    client.request("GET", "/healthz")
    response = client.getresponse()
    response.read()
    return response.status == 200


def test_it_reloads_and_ends_in_order(start_server: Start) -> None:
    with start_server("--workers", "2") as server:
        until(lambda: len(worker_pids(server)) == 2)
        workers = worker_pids(server)
        server.reload()  # while they start, which does not end them
        until(lambda: server.client.get("/readyz").status_code == 200)
        body = RUN | {"code": "import time; print('begun', flush=True); time.sleep(0.5); print('ended')"}
        with server.client.stream("POST", "/v1/run", json=body, headers={"accept": "text/event-stream"}) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: stdout"
            server.reload()
            assert worker_pids(server) == workers
            server.process.send_signal(signal.SIGTERM)
            heard = "\n".join(lines)
        server.process.communicate(timeout=60)
    assert '"stdout": "begun\\nended\\n"' in heard and server.process.returncode == 0
    assert not any(map(arguments_of, workers))


def test_workers_end_when_their_front_is_killed(start_server: Start) -> None:
    with start_server("--workers", "2") as server:
        await_workers(server)
        assert server.client.post("/v1/run", json=RUN).status_code == 200
        until(lambda: len(worker_pids(server)) == 2)
        workers = worker_pids(server)
        server.process.kill()
        until(lambda: not any(map(arguments_of, workers)))
        server.process.wait()


def test_ids_say_which_worker() -> None:
    assert [worker_of_id("ab" * 16 + worker_suffix(number)) for number in (0, 7, 255)] == [0, 7, 255]
    assert [worker_of_id(text) for text in ("", "zz", "é", "-1", "+1", " 1", "1_")] == [None] * 7


def test_figures_of_several_are_added() -> None:
    text = '# HELP runs x\n# TYPE runs counter\nruns{a="b c"} 2.0\nruns_created{a="b c"} 5.0\n'
    other = text.replace("2.0", "3.0").replace("5.0", "4.0") + "more 0.1\n"
    expected = (
        '# HELP runs x\n# TYPE runs counter\nruns{a="b c"} 5\nruns_created{a="b c"} 4\nmore 0.10000000000000001\n'
    )
    assert merge_metrics([text, other]) == expected


def test_a_body_is_framed_once() -> None:
    """With both headers, a proxy that uses the other one would find a second request in the body."""
    asked = [(b"host", b"a"), (b"content-length", b"4"), (b"transfer-encoding", b"chunked"), (b"connection", b"x")]
    assert headers_to_forward(asked) == [(b"host", b"a"), (b"transfer-encoding", b"chunked"), (b"connection", b"close")]
    assert headers_to_forward([(b"content-length", b"4"), (b"expect", b"100-continue")]) == [
        (b"content-length", b"4"),
        (b"connection", b"close"),
    ]
