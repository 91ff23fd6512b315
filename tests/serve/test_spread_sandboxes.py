"""Without a token file, `--workers N` spreads the sandboxes of the only tenant; its quota and its lists stay one."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.helpers import until
from tests.serve.conftest import Server, await_workers, worker_pids
from tests.serve.requests import Box, create_sandbox
from websockets.sync.client import connect

from warmcell.interfaces.serve.front.shared_memory import SharedCounts, SharedQuota, make_counts_file
from warmcell.interfaces.serve.quotas import SANDBOXES, SNAPSHOTS

Start = Callable[..., AbstractContextManager[Server]]
QUOTA = 8


@pytest.fixture(scope="module")
def front(start_server: Start) -> Iterator[Server]:
    with start_server("--workers", "2", "--sandboxes", str(QUOTA)) as server:
        await_workers(server)
        yield server


@pytest.fixture(autouse=True)
def nothing_left(front: Server) -> Iterator[None]:
    yield
    for sandbox in front.client.get("/v1/sandboxes").json():
        front.client.delete(f"/v1/sandboxes/{sandbox['id']}")
    for snapshot in front.client.get("/snapshots").json():
        front.client.delete(f"/templates/{snapshot['snapshotID']}")


def workers_of(*identities: str) -> Counter[str]:
    return Counter(identity[-2:] for identity in identities)


def test_new_sandboxes_go_to_the_worker_with_the_fewest(front: Server) -> None:
    own = [create_sandbox(front.client) for _ in range(2)]
    boxes = [Box(front.client, metadata={"number": str(number)}) for number in range(4)]
    assert workers_of(*own) == {"00": 1, "01": 1}
    assert workers_of(*(box.id for box in boxes)) == {"00": 2, "01": 2}
    # Each request finds its sandbox over whichever connection it comes.
    for number, at in enumerate(own):
        front.client.put(f"{at}/files/a", content=str(number).encode())
        assert front.client.post(f"{at}/sh", json={"script": "cat a"}).json()["stdout"] == str(number)
    assert [box.run(f"echo {number}")[1] for number, box in enumerate(boxes)] == ["0\n", "1\n", "2\n", "3\n"]
    for at in own:
        front.client.delete(at)
    for box in boxes:
        assert box.kill() == 204
    assert front.client.get("/v1/sandboxes").json() == front.client.get("/v2/sandboxes").json() == []


def test_lists_are_those_of_all_workers(front: Server) -> None:
    boxes = [Box(front.client, metadata={"of": "lists"}).id for _ in range(4)]
    listed = front.client.get("/v1/sandboxes").json()
    assert [one["id"] for one in listed] == boxes
    assert front.client.head("/v1/sandboxes").status_code == 200
    query: dict[str, Any] = {"metadata": "of=lists", "order": "asc", "limit": 3}
    first = front.client.get("/v2/sandboxes", params=query)
    rest = front.client.get("/v2/sandboxes", params=query | {"nextToken": first.headers["x-next-token"]})
    assert "x-next-token" not in rest.headers
    assert [one["sandboxID"] for one in first.json() + rest.json()] == boxes
    newest = front.client.get("/sandboxes", params={"limit": 1}).json()
    assert [one["sandboxID"] for one in newest] == boxes[-1:]
    assert front.client.get("/sandboxes", params={"metadata": "of=others"}).json() == []
    refused = front.client.get("/sandboxes", params={"limit": "x"})
    assert refused.status_code == 400 and refused.json()["message"] == "limit must be a whole number"


def test_the_quota_holds_over_all_workers(front: Server) -> None:
    with ThreadPoolExecutor(QUOTA * 2) as threads:
        made = [*threads.map(lambda _: front.client.post("/v1/sandboxes", json={}), range(QUOTA * 2))]
    assert Counter(answer.status_code for answer in made) == {201: QUOTA, 429: QUOTA}
    assert set(workers_of(*(answer.json()["id"] for answer in made if answer.status_code == 201))) == {"00", "01"}
    one = front.client.get("/v1/sandboxes").json()[0]["id"]
    assert front.client.post(f"/v1/sandboxes/{one}/fork", json={}).status_code == 429
    assert front.client.post("/sandboxes", json={"templateID": "base"}).status_code == 429
    front.client.delete(f"/v1/sandboxes/{one}")
    assert front.client.post("/sandboxes", json={"templateID": "base"}).status_code == 201


def test_snapshots_are_found_wherever_they_are(front: Server) -> None:
    boxes = [Box(front.client) for _ in range(2)]
    for number, box in enumerate(boxes):
        box.run(f"echo {number} > /home/user/mark")
        taken = front.client.post(f"/sandboxes/{box.id}/snapshots", json={"name": f"mark-{number}"})
        assert taken.status_code == 201
        for template in (taken.json()["snapshotID"], f"mark-{number}", f"mark-{number}:default"):
            copy = Box(front.client, templateID=template)
            assert copy.run("cat /home/user/mark")[1] == f"{number}\n"
            copy.kill()
        found = front.client.get(f"/templates/aliases/mark-{number}")
        assert found.json()["templateID"] == taken.json()["snapshotID"]
    known = front.client.get("/snapshots").json()
    first = front.client.get("/snapshots", params={"limit": 1})
    rest = front.client.get("/snapshots", params={"limit": 1, "nextToken": first.headers["x-next-token"]})
    assert len(known) == 2 and first.json() + rest.json() == known and "x-next-token" not in rest.headers
    named = front.client.get("/snapshots", params={"sandboxID": boxes[1].id}).json()
    assert [one["names"] for one in named] == [["mark-1"]]
    for number in range(2):
        assert front.client.delete(f"/templates/mark-{number}").status_code == 204
        assert front.client.delete(f"/templates/mark-{number}").status_code == 404
    assert front.client.post("/sandboxes", json={"templateID": "mark-0"}).status_code == 404
    assert front.client.post(f"/sandboxes/{boxes[0].id}/snapshots", json={"name": "base"}).status_code == 403


def test_volumes_are_mounted_and_a_snapshot_elsewhere_is_refused(front: Server) -> None:
    made = front.client.post("/volumes", json={"name": "shared"}).json()
    mounts = [{"name": "shared", "path": "/mnt/shared"}]
    users = [Box(front.client, volumeMounts=mounts) for _ in range(2)]
    assert users[0].run("echo both > /mnt/shared/f")[0] == 0
    assert users[1].run("cat /mnt/shared/f")[1] == "both\n"
    assert front.client.delete(f"/volumes/{made['volumeID']}").status_code == 409
    other = next(box for box in (Box(front.client) for _ in range(3)) if box.id[-2:] != users[0].id[-2:])
    answers = []
    for box in (users[0], other):
        taken = front.client.post(f"/sandboxes/{box.id}/snapshots").json()["snapshotID"]
        body = {"templateID": taken, "volumeMounts": mounts}
        answers.append(front.client.post("/sandboxes", json=body))
    assert [answer.status_code for answer in answers] == [201, 409]
    assert "different processes" in answers[1].json()["message"]
    for row in front.client.get("/sandboxes").json():
        front.client.delete(f"/sandboxes/{row['sandboxID']}")
    assert front.client.delete(f"/volumes/{made['volumeID']}").status_code == 204


def test_a_web_socket_reaches_the_worker_of_its_sandbox(front: Server) -> None:
    for _ in range(2):
        at = create_sandbox(front.client)
        pid = front.client.post(f"{at}/processes", json={"command": "cat"}).json()["pid"]
        with connect(front.url.replace("http:", "ws:") + f"{at}/processes/{pid}/ws", open_timeout=60) as socket:
            socket.send(b"echo\n")
            assert socket.recv() == b"\1echo\n"
            socket.send(json.dumps({"type": "kill"}))


def test_what_a_killed_worker_had_is_not_counted(front: Server) -> None:
    made = [create_sandbox(front.client) for _ in range(QUOTA)]
    before = worker_pids(front)
    os.kill(before[0], signal.SIGKILL)
    until(lambda: len(set(worker_pids(front)) - set(before)) == 1)
    await_workers(front)
    kept = [f"/v1/sandboxes/{one['id']}" for one in front.client.get("/v1/sandboxes").json()]
    assert len(kept) == QUOTA // 2 and set(kept) < set(made)
    more = [create_sandbox(front.client) for _ in range(QUOTA // 2)]
    assert set(workers_of(*more)) == set(workers_of(*made)) - set(workers_of(*kept))
    assert front.client.post("/v1/sandboxes", json={}).status_code == 429


def test_a_wrong_token_is_refused_before_anything_is_read(start_server: Start) -> None:
    with start_server("--workers", "2", "--token", "a-token-of-sixteen") as server:
        await_workers(server, {"x-api-key": "a-token-of-sixteen"})
        for method, path in (("GET", "/v1/sandboxes"), ("GET", "/v2/sandboxes"), ("GET", "/snapshots")):
            assert server.client.request(method, path).status_code == 401
        for path in ("/v1/sandboxes", "/sandboxes"):
            assert server.client.post(path, json={"templateID": "some"}).status_code == 401
        assert server.client.delete("/templates/some").status_code == 401
        assert Box(server.client, "a-token-of-sixteen").kill() == 204


def test_counts_of_workers_add_up() -> None:
    counts = SharedCounts(make_counts_file(2))
    one, two = (SharedQuota(counts, worker, SANDBOXES) for worker in range(2))
    assert [quota.take("any", 3) for quota in (one, two, two, one)] == [True, True, True, False]
    assert (counts.of_worker(0, SANDBOXES), counts.of_worker(1, SANDBOXES)) == (1, 2)
    assert SharedQuota(counts, 0, SNAPSHOTS).count("any") == 0
    counts.clear(1)
    assert one.take("any", 3) and one.count("any") == 2
    one.release("any")
    two.add("any")
    assert one.total() == two.total() == 2
    counts.close()
