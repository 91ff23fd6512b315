"""The page's files and the rules that they, and all other answers, are sent under."""

from __future__ import annotations

import gzip
import json
import re
from itertools import islice

import pytest
from tests.serve.conftest import Server

from warmcell.interfaces.serve.v1.activity import merge_history


def test_the_page_may_do_nothing_but_talk_to_its_server(server: Server) -> None:
    answer = server.client.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    rules = answer.headers["content-security-policy"]
    assert rules.startswith("default-src 'none'") and "unsafe" not in rules and "frame-ancestors 'none'" in rules
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in answer.headers
    assert not re.search(rb"https?://|<style|style=|onload|<script>", answer.content)


def test_every_part_is_there_and_kept(server: Server) -> None:
    names = re.findall(r"/page/([\w.-]+)", server.client.get("/").text)
    assert len(names) >= 3
    for name in names:
        answer = server.client.get(f"/page/{name}")
        assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]
    packed = server.client.stream("GET", f"/page/{names[-1]}", headers={"accept-encoding": "gzip"})
    plain = server.client.get(f"/page/{names[-1]}", headers={"accept-encoding": "identity"})
    with packed as answer:
        assert gzip.decompress(b"".join(answer.iter_raw())) == plain.content


@pytest.mark.parametrize("name", ["..%2fapp.py", "%2e%2e%2fapp.py", "built-from.json", "none.js", "a%00.js", "é.js"])
def test_nothing_else_is(server: Server, name: str) -> None:
    assert server.client.get(f"/page/{name}").status_code == 404


def test_what_shows_a_guests_html_has_no_rights(server: Server) -> None:
    rules = server.client.get("/page/frame.html").headers["content-security-policy"]
    assert "sandbox allow-scripts;" in rules and "allow-same-origin" not in rules
    assert re.search(r"script-src 'sha256-[\w+/=]{44}';", rules) and "connect-src" not in rules


def test_no_answer_can_be_shown_as_a_page(server: Server) -> None:
    """Whatever a guest wrote, under whatever name: not run, not framed, not guessed to be something else."""
    identity = server.client.post("/v1/sandboxes", json={}).json()["id"]
    at = f"/v1/sandboxes/{identity}/files/page.html"
    server.client.put(at, content=b"<script>alert(1)</script>")
    for path in (at, "/v1/capabilities", "/openapi.json", "/nothing"):
        answer = server.client.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].endswith("sandbox")
        assert "html" not in answer.headers["content-type"]
    server.client.delete(f"/v1/sandboxes/{identity}")


def test_history_is_for_those_who_may_see_figures(server: Server) -> None:
    body = {"language": "python", "code": "print(1)", "timeout": 30}
    assert server.client.post("/v1/run", json=body).status_code == 200
    told = server.client.get("/v1/history").json()
    assert sum(sum(step["outcomes"].values()) for step in told["steps"]) >= 1
    with server.client.stream("GET", "/v1/history", headers={"accept": "text/event-stream"}) as live:
        names = [line for line in islice(live.iter_lines(), 4) if line.startswith("event")]
    assert names == ["event: history"] * 2


def test_what_several_workers_say_is_added() -> None:
    step = {
        "time": 5,
        "outcomes": {"ok": 1},
        "p50": None,
        "p95": 0.2,
        "memory": 3,
        "running": 1,
        "waiting": 0,
        "resident": 9,
    }
    told = {"began": 7.0, "step": 5, "sandboxes": 1, "queue": 4, "steps": [step]}
    other = told | {
        "began": 6.0,
        "steps": [step | {"outcomes": {"ok": 2, "failed": 1}, "p50": 0.1}, step | {"time": 10}],
    }
    found = merge_history(json.dumps(each).encode() for each in (told, other))
    assert found["steps"][0] == step | {"outcomes": {"ok": 3, "failed": 1}, "p50": 0.1, "running": 2, "resident": 18}
    assert [step["time"] for step in found["steps"]] == [5, 10]
    assert (found["began"], found["sandboxes"], found["queue"]) == (6.0, 2, 4)
