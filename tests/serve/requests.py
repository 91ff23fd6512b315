"""Requests to a server under test."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import require
from tests.serve.conftest import Server


def key_options(place: Path, has_key: bool) -> tuple[str, ...]:
    """Of a server with an encrypted state, whose key is in a file there; none without a key."""
    if not has_key:
        return ()
    pytest.importorskip("cryptography")
    key = place / "key"
    key.write_text("1a" * 32 + "\n")
    return "--state-key", str(key)


class Box:
    """One sandbox, as a client holds it."""

    def __init__(self, client: httpx.Client, key: str = "any", **body: Any) -> None:
        self.client, self.key = client, {"x-api-key": key}
        made = client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 120, **body}, headers=self.key)
        assert made.status_code == 201, made.text
        self.made = made.json()
        self.id = self.made["sandboxID"]
        self.headers = {"e2b-sandbox-id": self.id, "x-access-token": self.made["envdAccessToken"]}

    def call(self, method: str, **message: Any) -> httpx.Response:
        return self.client.post(f"/{method}", json=message, headers=self.headers)

    def stream(self, method: str, headers: dict[str, str] | None = None, **message: Any) -> list[dict[str, Any]]:
        data = json.dumps(message).encode()
        sent = b"\0" + len(data).to_bytes(4, "big") + data
        kind = {"content-type": "application/connect+json"}
        answer = self.client.post(f"/{method}", content=sent, headers=self.headers | kind | (headers or {}))
        assert answer.status_code == 200, answer.text
        found, rest = [], answer.content
        while rest:
            size = int.from_bytes(rest[1:5], "big")
            found.append(json.loads(rest[5 : 5 + size]) | ({"last": True} if rest[0] & 2 else {}))
            rest = rest[5 + size :]
        return found

    def run(self, command: str, **more: Any) -> tuple[int, str, str]:
        process = {"cmd": "/bin/bash", "args": ["-l", "-c", command], **more}
        events = self.stream("process.Process/Start", process=process, stdin=False)
        assert "pid" in events[0]["event"]["start"] and events[-1] == {"last": True}, events
        texts = {"stdout": b"", "stderr": b""}
        for event in events[1:-2]:
            for name, data in event["event"].get("data", {}).items():
                texts[name] += b64decode(data)
        return events[-2]["event"]["end"]["exitCode"], texts["stdout"].decode(), texts["stderr"].decode()

    def kill(self) -> int:
        return self.client.delete(f"/sandboxes/{self.id}", headers=self.key).status_code


Event = tuple[str, dict[str, Any], str | None]
EVENTS = {"accept": "text/event-stream"}


@contextmanager
def stream_events(client: httpx.Client, method: str, path: str, **more: Any) -> Iterator[Iterator[Event]]:
    """Server-sent events as they come: name, data, id."""
    with client.stream(method, path, headers=EVENTS | more.pop("headers", {}), **more) as answer:
        assert answer.status_code == 200, answer.read()

        def events() -> Iterator[Event]:
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                elif not line and "event" in fields:
                    yield fields["event"], json.loads(fields["data"]), fields.get("id")
                    fields = {}

        yield events()


def create_sandbox(client: httpx.Client, **body: Any) -> str:
    answer = client.post("/v1/sandboxes", json=body)
    assert answer.status_code == 201, answer.text
    identity: str = answer.json()["id"]
    return f"/v1/sandboxes/{identity}"


def is_running(mark: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes().split(b"\0")[0]:
                return True
        except OSError:
            continue
    return False


def states_of_sleep(mark: str) -> list[str]:
    """The states of all programs `sleep MARK` on this host, as letters of `ps`. `mark`: a unique number."""
    listing = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [state[0] for state, *args in rows if args == ["sleep", mark]]


FUSION = {"code": "print(1)", "language": "python", "run_timeout": 20}
PISTON = {"language": "python", "version": "*", "files": [{"content": "print(1)"}]}


def post(server: Server, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    sent = {"content-type": "application/json"} | (headers or {})
    return server.client.post(path, content=json.dumps(body).encode(), headers=sent)


def cell(box: Box, **body: Any) -> httpx.Response:
    return box.client.post("/execute", json=body, headers=box.headers)


PLAIN = {"language": "python", "code": "print(1)", "timeout": 30}


def asset_of(server: Server, prefix: str = "") -> str:
    found = re.search(r'src="([^"]*index-[^"]+)"', server.client.get(f"{prefix}/").text)
    assert found is not None
    return found[1]


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    require(shutil.which("openssl"), "openssl is not installed")
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key
