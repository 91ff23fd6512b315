"""`kill -9` of `warmcell serve --state` in the middle of creating, writing, pausing, snapshotting and removing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import PATIENCE
from tests.serve.conftest import Server
from tests.serve.requests import Box, key_options

Start = Callable[..., Any]
#: Each sandbox is worth one answer or two.
CLIENTS, SANDBOXES, ANSWERS = 3, 8, 15


@dataclass
class Known:
    """What a client knows of a sandbox. None: it does not know whether its last request was carried out."""

    box: Box
    #: One of these is in the file: the last one that was written for certain, or a later one.
    words: set[str]
    is_paused: bool | None = False
    is_removed: bool | None = False


class Client:
    """Works on one sandbox after the other, until the server is gone. `answered` is released for each answer."""

    def __init__(self, server: Server, number: int, answered: threading.Semaphore) -> None:
        self.http = httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False)
        self.number, self.answered = number, answered
        self.known: list[Known] = []
        self.snapshots: list[str] = []
        self.volumes: list[str] = []
        self.failure: AssertionError | None = None

    def work(self) -> None:
        try:
            with suppress(httpx.HTTPError):
                for turn in range(SANDBOXES):
                    self._use_one(turn)
        except AssertionError as error:
            self.failure = error

    def _use_one(self, turn: int) -> None:
        known = Known(Box(self.http, timeout=3000), {""})
        self.known.append(known)
        word = f"{self.number}-{turn}"
        known.words = {"", word}
        known.box.run(f"printf {word} > draft; mv draft file")
        known.words = {word}
        self.answered.release()
        path, key = f"/sandboxes/{known.box.id}", known.box.key
        match (self.number + turn) % 4:
            case 0:
                self.snapshots.append(self._ask(201, "POST", f"{path}/snapshots", json={}).json()["snapshotID"])
            case 1:
                known.is_paused = None
                self._ask(204, "POST", f"{path}/pause", json={})
                known.is_paused = True
            case 2:
                known.is_removed = None
                self._ask(204, "DELETE", path, headers=key)
                known.is_removed = True
            case _:
                made = self._ask(201, "POST", "/volumes", json={"name": f"volume-{word}"}).json()
                self.volumes.append(made["volumeID"])

    def _ask(self, status: int, method: str, path: str, **more: Any) -> httpx.Response:
        answer = self.http.request(method, path, **more)
        assert answer.status_code == status, answer.text
        self.answered.release()
        return answer


@pytest.mark.parametrize("has_key", [False, True])
def test_what_was_answered_is_there_and_nothing_else_is_left(
    start_server: Start, tmp_path: Path, has_key: bool
) -> None:
    options = ("--state", str(tmp_path / "state"), "--spares", "0", *key_options(tmp_path, has_key))
    options += ("--plain-volumes",) if has_key else ()
    with start_server(*options) as server:
        answered = threading.Semaphore(0)
        clients = [Client(server, number, answered) for number in range(CLIENTS)]
        threads = [threading.Thread(target=client.work, daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        for _ in range(ANSWERS):
            assert answered.acquire(timeout=PATIENCE)
        server.stop(signal.SIGKILL)
        for thread in threads:
            thread.join(PATIENCE)
    for client in clients:
        client.http.close()
        assert client.failure is None
    with start_server(*options) as server:
        for client in clients:
            _check(server, client, has_key)
        _check_directories(server, tmp_path / "state/worker-0")


def _check(server: Server, client: Client, has_key: bool) -> None:
    """With a key, only what was paused was saved."""
    everything = server.client.get("/v2/sandboxes", params={"limit": 100, "state": "running,paused"}).json()
    listed = {found["sandboxID"]: found["state"] for found in everything}
    for known in client.known:
        state = listed.get(known.box.id)
        is_lost = has_key and known.is_paused is not True
        assert state is None if known.is_removed else state or is_lost or known.is_removed is None, known
        assert known.is_paused is not True or state == "paused", known
        if state == "paused":
            server.client.post(f"/v2/sandboxes/{known.box.id}/connect", json={"timeout": 3000}).raise_for_status()
        if state is not None:
            known.box.client = server.client
            assert known.box.run("cat file || true")[1] in known.words
    assert set(client.snapshots) <= {found["snapshotID"] for found in server.client.get("/snapshots").json()}
    assert set(client.volumes) <= {found["volumeID"] for found in server.client.get("/volumes").json()}


def _check_directories(server: Server, worker: Path) -> None:
    names = {kind: {path.name for path in (worker / kind).iterdir()} for kind in ("records", "snapshots", "volumes")}
    assert not [name for found in names.values() for name in found if name.endswith(".new")]
    assert {name for name in names["volumes"] if name.endswith(".json")} == {
        f"{name}.json" for name in names["volumes"] if not name.endswith(".json")
    }
    status, _ = server.stop()
    assert status == 0
    assert len(list((worker / "homes").iterdir())) == len(names["records"]) + len(names["snapshots"])
