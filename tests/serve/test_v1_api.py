"""`/v1`: what the library does, over HTTP."""

from __future__ import annotations

import os
import re
import time
from base64 import b64decode, b64encode
from typing import Any

import httpx
import pytest
from tests.helpers import eventually
from tests.serve.conftest import Server, disconnect_after
from tests.serve.requests import create_sandbox, is_running, stream_events

from warmcell.core.types import Limits
from warmcell.images.references import REFERENCE_PATTERN
from warmcell.interfaces.serve.v1.models import LimitsBody


def post(server: Server, path: str = "/v1/run", **body: object) -> httpx.Response:
    return server.client.post(path, json=body)


def test_a_program_runs(server: Server) -> None:
    answer = post(server, language="python", code="print(6*7); import sys; sys.exit(3)", timeout=30)
    assert answer.status_code == 200
    result = answer.json()
    assert (result["status"], result["stdout"], result["exit_code"]) == ("success", "42\n", 3)
    assert result["enforced"]["isolation_class"] == "process+sandbox"


def test_bytes_go_both_ways(server: Server) -> None:
    code = "import sys; d=sys.stdin.buffer.read(); open('out','wb').write(d[::-1]); sys.stdout.buffer.write(d)"
    sent = bytes(range(256))
    body = {"language": "py", "code": code, "timeout": 30, "stdin": {"base64": b64encode(sent).decode()}}
    result = post(server, **body, fetch_files=["out"], files={"a": "text"}).json()
    assert b64decode(result["stdout_base64"]) == sent
    assert b64decode(result["files"]["out"]) == sent[::-1]


@pytest.mark.parametrize(
    ("code", "status", "limits"),
    [("while True: pass", "timeout", {}), ("x = bytearray(900 << 20)", "memory_exceeded", {"memory_mb": 64})],
)
def test_what_a_limit_ended_is_a_result(server: Server, code: str, status: str, limits: dict[str, int]) -> None:
    timeout = 1 if status == "timeout" else 60
    result = post(server, language="python", code=f"print('a', flush=True)\n{code}", timeout=timeout, limits=limits)
    assert result.status_code == 200
    assert (result.json()["status"], result.json()["stdout"]) == (status, "a\n")
    assert result.json()["error"]["fault"] == "guest"


def test_output_comes_as_it_is_printed(server: Server) -> None:
    """The first piece is not kept until the end: the second program waits until its client has received it."""
    body = {"language": "command", "code": "echo first; sleep 300", "timeout": 300}
    with stream_events(server.client, "POST", "/v1/run", json=body) as events:
        assert next(events)[1]["text"] == "first\n"
    at = create_sandbox(server.client)
    script = {"script": "echo first; until [ -e go ]; do sleep 0.05; done; echo last", "timeout": 60}
    with stream_events(server.client, "POST", f"{at}/sh", json=script) as events:
        heard = [next(events)]
        server.client.put(f"{at}/files/go", content=b"").raise_for_status()
        heard += events
    server.client.delete(at)
    assert [name for name, _, _ in heard] == ["stdout", "stdout", "result"]
    assert [data["text"] for _, data, _ in heard[:2]] == ["first\n", "last\n"]
    assert heard[-1][1]["stdout"] == "first\nlast\n"


def test_a_program_is_judged(server: Server) -> None:
    cases = [{"stdin": "2", "expected": "4"}, {"stdin": "3", "expected": "7"}]
    judged = post(server, "/v1/judge", language="python", code="print(2*int(input()))", timeout=30, cases=cases).json()
    assert (judged["status"], judged["accepted"], judged["total"]) == ("wrong_answer", 1, 2)
    assert [verdict["status"] for verdict in judged["verdicts"]] == ["accepted", "wrong_answer"]


def test_what_this_host_can_do(server: Server) -> None:
    found = server.client.get("/v1/capabilities").json()
    assert "python" in found["languages"] and found["versions"]["python"].startswith("Python 3")
    assert found["enforced_limits"]["network_isolation"] is True
    assert server.client.get("/healthz").json() == {"status": "ok"}
    assert server.client.get("/readyz").json() == {"status": "ready"}


@pytest.mark.attack("PT-09")
def test_a_run_ends_with_its_client(server: Server) -> None:
    """By a mark in its arguments, looked for from outside."""
    mark = f"gone-{os.getpid()}-{time.monotonic_ns()}"
    body = {"language": "command", "code": f"exec -a {mark} sleep 300", "timeout": 300}
    with disconnect_after(server, "/v1/run", body):
        assert eventually(lambda: is_running(mark))
    assert eventually(lambda: not is_running(mark))
    assert post(server, language="python", code="print(1)", timeout=30).json()["stdout"] == "1\n"


def test_the_document_is_about_every_route(server: Server) -> None:
    document = server.client.get("/openapi.json").json()
    assert {"/v1/run", "/v1/judge", "/v1/capabilities", "/v1/doctor", "/healthz"} <= set(document["paths"])
    schemas = document["components"]["schemas"]
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas


def test_summaries_describe_requests(server: Server) -> None:
    """Not the class of the object that handles them."""
    metrics = server.client.get("/openapi.json").json()["paths"]["/metrics"]["get"]
    assert metrics["summary"].endswith("for Prometheus.")


def test_the_document_has_the_bounds_that_hold(server: Server) -> None:
    schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
    bounds = {"type": "integer", "minimum": 1, "maximum": 1 << 30}
    assert bounds in schemas["LimitsBody"]["properties"]["output_bytes"]["anyOf"]
    assert "python" in schemas["RunBody"]["properties"]["language"]["enum"]
    assert schemas["RunBody"]["properties"]["timeout"]["maximum"] == 300
    [path] = [one for one in _parameters(server, "/v1/sandboxes/{id}/files/{path}") if one["name"] == "path"]
    for fits, name in ((True, "a/b c"), (False, "C:"), (False, "a\\b"), (False, "../a")):
        assert (re.search(path["schema"]["pattern"], name) is not None) == fits, name


def test_a_request_may_set_each_limit(server: Server) -> None:
    """`cpus` was refused as an unknown field, also from our own client."""
    schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
    assert set(schemas["LimitsBody"]["properties"]) == set(Limits.__slots__)
    assert LimitsBody(cpus=0.5).limits() == Limits(cpus=0.5)
    refused = post(server, language="python", code="pass", timeout=30, limits={"cpus": 1025})
    assert refused.status_code == 422 and "limits.cpus" in refused.json()["error"]["message"]


def test_the_document_says_what_the_server_accepts(server: Server) -> None:
    """Found by schemathesis: a control character in a name, a whole number with a fraction of zero, an undocumented 422."""
    sandbox = f"/v1/sandboxes/{server.client.post('/v1/sandboxes', json={}).json()['id']}"
    [path] = [one for one in _parameters(server, "/v1/sandboxes/{id}/upload", "post") if one["name"] == "path"]
    for name in ("a\x10b", "a\0b"):
        answer = server.client.post(f"{sandbox}/upload", params={"path": name}, content=b"x")
        assert answer.is_success == (re.search(path["schema"]["pattern"], name) is not None), answer.text
    server.client.delete(sandbox)
    cases = '{"language": "python", "code": "print(1)", "timeout": 30, "cases": [{"memory_mb": 256.0}]}'
    judged = server.client.post("/v1/judge", content=cases, headers={"content-type": "application/json"})
    assert judged.status_code == 200, judged.text
    gpu = {"language": "python", "code": "print(1)", "timeout": 30, "gpus": [0]}
    assert server.client.post("/v1/run", json=gpu).status_code == 403  # valid, but not allowed by the policy
    refused = server.client.get("/v1/usage?format=xml").status_code
    documented = server.client.get("/openapi.json").json()["paths"]["/v1/usage"]["get"]["responses"]
    assert {str(refused), "401"} <= set(documented)


def test_the_document_says_that_a_user_needs_an_image(server: Server) -> None:
    """Found by schemathesis, as were names that are not image references."""
    schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
    run = {"language": "python", "code": "print(1)", "timeout": 30}
    for path, body, model in (("/v1/run", run, "RunBody"), ("/v1/sandboxes", {}, "CreateBody")):
        without_user, with_image = schemas[model]["anyOf"]
        assert without_user == {"properties": {"user": {"type": "null"}}}
        assert with_image == {"properties": {"image": {"type": "string"}}, "required": ["image"]}
        assert schemas[model]["properties"]["image"]["anyOf"][0]["pattern"] == REFERENCE_PATTERN
        for given, status in (
            ({"user": "root"}, 422),
            ({"user": "root", "image": None}, 422),
            ({"user": "root", "image": "A"}, 422),
            ({"user": "root", "image": "a"}, 404),
        ):
            assert server.client.post(path, json=body | given).status_code == status, given
    assert server.client.post("/v1/run", json=run | {"user": None}).status_code == 200


def _parameters(server: Server, path: str, method: str = "put") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.client.get("/openapi.json").json()["paths"][path][method]["parameters"]
    return found


def test_a_wrong_method_hears_all_right_ones(server: Server) -> None:
    assert server.client.options("/v1/sandboxes").headers["allow"] == "GET, HEAD, POST"
    assert server.client.post("/v1/sandboxes/0/files/0").headers["allow"] == "DELETE, GET, HEAD, PUT"


def _references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    return [found for value in node for found in _references(value)] if isinstance(node, list) else []


def test_runs_are_counted_for_prometheus(server: Server) -> None:
    post(server, language="python", code="raise SystemExit(1)", timeout=30)
    answer = server.client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    counted = [line for line in answer.text.splitlines() if line.startswith("warmcell_runs_total{")]
    assert any('language="python",outcome="failed"' in line for line in counted)


def test_what_is_under_way_is_told_without_what_it_holds(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as other:
        body = {"language": "python", "code": "import time; print('canary', flush=True); time.sleep(60)", "timeout": 60}
        headers = {"Accept": "text/event-stream", "X-Request-Id": "under-way"}
        with other.stream("POST", "/v1/run", json=body, headers=headers) as stream:
            lines = stream.iter_lines()  # kept: a client whose iterator is freed hangs up
            assert any("canary" in line for line in lines)
            found = server.client.get("/v1/activity")
    (run,) = [run for run in found.json()["runs"] if run["request"] == "under-way"]  # others may be about to end
    assert run["state"] == "running"
    assert run["language"] == "python" and run["seconds"] < 60
    assert "canary" not in found.text
