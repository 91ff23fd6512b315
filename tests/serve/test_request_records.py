"""Request ids, the audit, JSON logs, usage and waiting: what an operator can know about every request."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require, until
from tests.serve.conftest import Server, await_workers, make_token

Start = Callable[..., AbstractContextManager[Server]]
RUN = {"language": "python", "code": "print(6 * 7)", "timeout": 20}


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def key(token: str) -> dict[str, str]:
    return {"x-api-key": token}


def test_every_response_has_a_request_id(server: Server) -> None:
    client = server.client
    own = [client.get(path).headers["x-request-id"] for path in ("/healthz", "/nothing", "/v1/sandboxes/x")]
    assert len(set(own)) == 3
    given = client.post("/v1/run", json=RUN, headers={"x-request-id": "mine-1"})
    assert given.headers.get_list("x-request-id") == ["mine-1"]
    strange = client.get("/healthz", headers={"x-request-id": "a b\tc" * 50})
    assert len(strange.headers["x-request-id"]) == 16


def test_methods_that_clients_invent_are_counted_as_one(server: Server) -> None:
    """Each was a series of the metrics for ever, with up to 64 KiB of text, also from clients without a token."""
    for number in range(3):
        assert server.client.request(f"INVENTED{number}", "/nothing").status_code == 404
    until(lambda: 'method="other"' in server.client.get("/metrics").text)
    assert "INVENTED" not in server.client.get("/metrics").text


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_audit_names_tenant_request_sandbox_and_refused_tokens(
    start_server: Start, tmp_path: Path, workers: str
) -> None:
    tokens, audit = tmp_path / "tokens.json", tmp_path / "audit.jsonl"
    token = make_token(tokens, "one")
    options = ("--tokens", str(tokens), "--audit", str(audit), "--workers", workers)
    with start_server(*options) as server:
        await_workers(server, key(token))
        client = server.client
        ran = client.post("/v1/run", json=RUN, headers=key(token) | {"x-request-id": "the-run"})
        assert ran.headers["x-request-id"] == "the-run", ran.text
        assert client.post("/v1/run", json=RUN, headers=key("wrong")).status_code == 401
        made = client.post("/v1/sandboxes", json={}, headers=key(token)).json()["id"]
        client.post(f"/v1/sandboxes/{made}/run", json={"code": "1"}, headers=key(token))
        bad = client.post("/v1/run", json=RUN | {"timeout": -1}, headers=key(token))
        assert bad.status_code == 422
        until(lambda: len([line for line in lines_of(audit) if line["event"] == "request"]) >= 5)
    lines = lines_of(audit)
    requests = {line["subject"]: line for line in lines if line["event"] == "request"}
    first = requests["the-run"]
    assert (first["route"], first["method"], first["status"]) == ("/v1/run", "POST", 200)
    assert first["tenant"] and first["duration"] > 0 and first["client"]
    run = next(line for line in lines if line["event"] == "run.ended")
    assert (run["request"], run["tenant"]) == ("the-run", first["tenant"])
    refused = [line for line in requests.values() if line["status"] == 401]
    assert len(refused) == 1 and "tenant" not in refused[0] and refused[0]["fault"] == "caller"
    assert [line["status"] for line in requests.values() if line.get("sandbox") == made] == [200]
    assert any(line["event"] == "run.ended" and line.get("sandbox") == made for line in lines)
    assert token not in audit.read_text() and "wrong" not in audit.read_text()


def test_logs_are_json_lines(start_server: Start) -> None:
    with start_server("--log-format", "json", "--log-level", "info") as server:
        assert server.client.get("/healthz").status_code == 200
        log = server.stop(signal.SIGTERM)[1]
    lines = [json.loads(line) for line in log.splitlines()]
    assert any(line["message"].startswith("SIGTERM") and line["level"] == "warning" for line in lines)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_usage_is_per_tenant_and_survives_a_restart(start_server: Start, tmp_path: Path, workers: str) -> None:
    tokens = tmp_path / "tokens.json"
    one, two = make_token(tokens, "one"), make_token(tokens, "two", "--scope", "metrics")
    options = ("--tokens", str(tokens), "--usage", str(tmp_path / "usage.db"), "--workers", workers)
    for runs in (2.0, 4.0):
        with start_server(*options) as server:
            await_workers(server, key(one))
            for _ in range(2):
                assert server.client.post("/v1/run", json=RUN, headers=key(one)).status_code == 200

            def usage(token: str, server: Server = server) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = server.client.get("/v1/usage", headers=key(token)).json()["usage"]
                return found

            def is_complete(runs: float = runs) -> bool:
                time.sleep(0.2)
                server.client.get("/v1/capabilities", headers=key(one))  # flushes what is due
                return [row["runs"] for row in usage(one) if row["runs"]] == [runs]

            until(is_complete)
            mine = next(row for row in usage(one) if row["runs"])
            assert mine["cpu_seconds"] > 0 and mine["memory_gib_seconds"] > 0 and mine["sandbox"] == ""
            assert {row["tenant"] for row in usage(two)} >= {mine["tenant"]}
            assert {row["tenant"] for row in usage(one)} == {mine["tenant"]}
            text = server.client.get("/v1/usage", params={"format": "csv"}, headers=key(one)).text
            assert text.startswith("tenant,sandbox,requests,runs,") and mine["tenant"] in text
            assert server.client.get("/v1/usage").status_code == 401


@pytest.mark.attack("S3-18")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_figures_are_kept_for_sandboxes_that_exist(start_server: Start, tmp_path: Path, workers: str) -> None:
    """A client that calls anything a sandbox made rows of 60 kB without end, in memory and in answers."""
    tokens = tmp_path / "tokens.json"
    one, two = make_token(tokens, "one"), make_token(tokens, "two")
    with start_server("--tokens", str(tokens), "--workers", workers) as server:
        await_workers(server, key(one))
        client = server.client
        foreign = client.post("/v1/sandboxes", json={}, headers=key(two)).json()["id"]
        own = client.post("/v1/sandboxes", json={}, headers=key(one)).json()["id"]
        for sandbox in (foreign, "x" * 4000, "another"):
            assert client.get(f"/v1/sandboxes/{sandbox}", headers=key(one)).status_code == 404
            named = key(one) | {"e2b-sandbox-id": sandbox}
            assert client.post("/v1/run", json=RUN, headers=named).status_code == 200
        assert client.get(f"/v1/sandboxes/{own}", headers=key(one)).status_code == 200

        def known() -> list[str]:
            rows = client.get("/v1/usage", headers=key(one)).json()["usage"]
            return sorted(row["sandbox"] for row in rows if row["requests"] or row["runs"])

        until(lambda: own in known())
        assert known() == ["", own]


def test_waiting_is_what_the_client_waits(start_server: Start, tmp_path: Path) -> None:
    """With one slot, two clients wait until a third one leaves: all figures say so."""
    tokens = tmp_path / "tokens.json"
    every = [word for scope in ("run", "metrics") for word in ("--scope", scope)]
    token = make_token(tokens, "one", "--runs", "1", *every)
    with start_server("--tokens", str(tokens)) as server:
        endless = RUN | {"code": "import time; print('begun', flush=True); time.sleep(300)", "timeout": 300}
        threads = [
            threading.Thread(target=server.client.post, args=("/v1/run",), kwargs={"json": RUN, "headers": key(token)})
            for _ in range(2)
        ]

        def metrics() -> str:
            return server.client.get("/metrics", headers=key(token)).text

        activity: list[dict[str, object]] = []

        def one_runs() -> bool:
            activity[:] = server.client.get("/v1/activity", headers=key(token)).json()["runs"]
            return sorted(str(run["state"]) for run in activity) == ["running", "waiting", "waiting"]

        headers = key(token) | {"accept": "text/event-stream"}
        with server.client.stream("POST", "/v1/run", json=endless, headers=headers) as stream:
            lines = stream.iter_lines()  # kept: the stream ends with it
            assert next(lines) == "event: stdout"
            for thread in threads:
                thread.start()
            until(lambda: "warmcell_runs_waiting 2.0" in metrics())
            until(one_runs)
            both_wait = time.monotonic()
            assert all(run["tenant"] and run["request"] for run in activity)
            time.sleep(0.5)
            least = 2 * (time.monotonic() - both_wait)
        for thread in threads:
            thread.join()
        until(lambda: 'warmcell_http_requests_total{method="POST",route="/v1/run",status="200"} 3.0' in metrics())
        text = metrics()
        waited = next(line for line in text.splitlines() if line.startswith("warmcell_queue_seconds_sum"))
        assert float(waited.split()[-1]) > least  # of the clients' own
        assert "warmcell_runs_waiting 0.0" in text


@pytest.mark.parametrize("workers", ["1", "2"])
def test_metrics_by_tenant(start_server: Start, tmp_path: Path, workers: str) -> None:
    tokens = tmp_path / "tokens.json"
    one, watcher = make_token(tokens, "one"), make_token(tokens, "watcher", "--scope", "metrics")
    with start_server("--tokens", str(tokens), "--metrics-by-tenant", "--workers", workers) as server:
        await_workers(server, key(watcher))
        assert server.client.post("/v1/run", json=RUN, headers=key(one)).status_code == 200
        tenant = json.loads(tokens.read_text())["tokens"][0]["id"]

        def figures() -> dict[str, float]:
            lines = server.client.get("/metrics", headers=key(watcher)).text.splitlines()
            found = [line.rpartition(" ") for line in lines if line.startswith("warmcell_tenant_") and tenant in line]
            return {name: float(value) for name, _, value in found if "_created" not in name}

        wanted = {
            f'warmcell_tenant_runs_total{{outcome="ok",tenant="{tenant}"}}': 1,
            f'warmcell_tenant_http_requests_total{{status="200",tenant="{tenant}"}}': 1,
            f'warmcell_tenant_runs_waiting{{tenant="{tenant}"}}': 0,
        }
        until(lambda: figures().items() >= wanted.items())
        assert figures()[f'warmcell_tenant_cpu_seconds_total{{tenant="{tenant}"}}'] > 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_spans_are_exported_by_otlp(start_server: Start, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    require(find_spec("opentelemetry.exporter"), "the OTLP exporter is not installed")
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.path.encode() + self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    try:
        with start_server("--workers", workers) as server:
            await_workers(server)
            assert server.client.post("/v1/run", json=RUN).status_code == 200
            assert server.stop()[0] == 0
        assert any(body.startswith(b"/v1/traces") and b"warmcell.run python" in body for body in received)
        assert any(body.startswith(b"/v1/metrics") and b"warmcell.run.duration" in body for body in received)
    finally:
        collector.shutdown()
        collector.server_close()
