"""Which node of a cluster answers a request, what is refused, and settings that do not work with `--ray`."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell import InvalidRequest, NodeLost
from warmcell.backends.ray.placement import Needs, NodeInfo
from warmcell.interfaces.serve.cluster.front import ClusterFront
from warmcell.interfaces.serve.cluster.placement import Kind, Place, choose_home, classify, merge_identifiers, needs_of
from warmcell.interfaces.serve.e2b.control import e2b_refusal
from warmcell.interfaces.serve.front.placement import Placement
from warmcell.interfaces.serve.responses import error_response
from warmcell.interfaces.serve.sandbox_registry import SandboxLost, SandboxNotFound
from warmcell.interfaces.serve.settings import Settings, check_cluster_settings

ROUTES = Placement(Settings())
E2B = {"e2b-sandbox-id": "s1"}
#: Method, path, headers and query; the place.
PLACES: list[tuple[str, str, dict[str, str], Place]] = [
    ("POST", "/v1/run", {}, Place(Kind.RUN)),
    ("POST", "/run_code", {}, Place(Kind.RUN)),
    ("POST", "/run_jupyter", {}, Place(Kind.RUN)),
    ("POST", "/v1/runs", {}, Place(Kind.HOME)),
    ("POST", "/v1/runs", E2B, Place(Kind.HOME)),
    ("GET", "/v1/capabilities", {}, Place(Kind.HOME)),
    ("POST", "/v1/sandboxes", {}, Place(Kind.CREATE, is_creating=True)),
    ("POST", "/v2/sandboxes", {}, Place(Kind.CREATE, is_creating=True)),
    ("GET", "/sandboxes", {}, Place(Kind.LIST)),
    ("DELETE", "/sandboxes/s1", {}, Place(Kind.SANDBOX, "s1")),
    ("GET", "/v1/sandboxes/s1/files/a/b", {}, Place(Kind.SANDBOX, "s1")),
    ("POST", "/v1/sandboxes/s1/fork", {}, Place(Kind.SANDBOX, "s1", is_creating=True)),
    ("POST", "/v1/sandboxes/s1/sessions/x/fork", {}, Place(Kind.SANDBOX, "s1", is_creating=True)),
    ("POST", "/process.Process/Start", E2B, Place(Kind.SANDBOX, "s1")),
    ("GET", "/files", E2B, Place(Kind.SANDBOX, "s1")),
    ("GET", "/files", {"signature": "v1_x"}, Place(Kind.SIGNED_LINK)),
    ("GET", "/metrics", {}, Place(Kind.FIGURES)),
    ("GET", "/v1/activity", {}, Place(Kind.FIGURES)),
    ("DELETE", "/v1/activity/runs/r", {}, Place(Kind.OPERATE)),
    ("POST", "/mcp", {}, Place(Kind.HOME, is_creating=True)),
    ("POST", "/mcp", {"mcp-session-id": "m"}, Place(Kind.HOME)),
    ("GET", "/", {}, Place(Kind.HOME)),
]


def place(method: str, path: str, asked: dict[str, str]) -> Place:
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    route = ROUTES.find_route(scope)
    if route is None:
        return classify(method, path, "", "", {}, asked)
    parameters = route.matches(scope)[1]["path_params"]
    return classify(method, path, route.description["scope"], route.path, parameters, asked)


def test_ids_and_signatures_count_where_a_node_reads_them() -> None:
    """`/mcp?mcp-session-id=x` began a session that the front did not take for a new one, nor count."""
    for method, path, name, in_header in (
        ("POST", "/mcp", "mcp-session-id", True),
        ("POST", "/process.Process/Start", "e2b-sandbox-id", True),
        ("GET", "/files", "signature", False),
    ):
        neither = place(method, path, {})
        found = [place(method, path, merge_identifiers(*pair)) for pair in (({name: "x"}, {}), ({}, {name: "x"}))]
        assert (found[0] != neither, found[1] != neither) == (in_header, not in_header), path


@pytest.mark.parametrize(("method", "path", "asked", "expected"), PLACES, ids=lambda value: str(value)[:40])
def test_places(method: str, path: str, asked: dict[str, str], expected: Place) -> None:
    assert place(method, path, asked) == expected


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v3/templates"),
        ("GET", "/templates/x/tags"),
        ("POST", "/volumes"),
        ("GET", "/volumecontent/v/file"),
        ("GET", "/snapshots"),
        ("POST", "/sandboxes/s1/snapshots"),
        ("POST", "/v1/sandboxes/s1/ports"),
        ("GET", "/v1/usage"),
        ("GET", "/v1/audit"),
    ],
)
def test_what_a_cluster_does_not_have(method: str, path: str) -> None:
    refused = place(method, path, {})
    assert refused.kind is Kind.REFUSED and "cluster" in refused.reason


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"language": "py"}', Needs("python")),
        (b'{"language": "klingon"}', Needs("")),
        (b'{"language": ["python"], "gpus": "all"}', Needs("", has_gpus=True)),
        (b"[]", Needs("")),
        (b"\xff", Needs("")),
        (b"[" * 100_000, Needs("")),
    ],
)
def test_what_a_body_needs_of_its_node(body: bytes, expected: Needs) -> None:
    assert needs_of(body) == expected


def test_only_tenants_of_a_lost_node_have_another_home() -> None:
    nodes: list[Any] = [SimpleNamespace(info=NodeInfo(name, "", 1, 0)) for name in "abc"]
    homes = {str(n): choose_home(nodes, str(n)).info.id for n in range(60)}
    assert set(homes.values()) == set("abc")
    left = [node for node in nodes if node.info.id != "b"]
    for token, home in homes.items():
        moved = choose_home(left, token).info.id
        assert moved == home or home == "b"


def test_a_lost_sandbox_is_the_hosts_fault_and_does_not_come_back() -> None:
    error = SandboxLost("0123456789", "it left the cluster")
    assert (error_response(error).status_code, e2b_refusal(error).status_code) == (410, 404)
    assert (error.code, error.fault, error.retryable) == (NodeLost.code, "host", False)


E2B_ROUTES = [("GET", "/health"), ("POST", "/process.Process/List"), ("POST", "/execute")]


@pytest.mark.parametrize(("method", "path"), E2B_ROUTES)
@pytest.mark.parametrize("error", [SandboxLost("0123456789", "it left"), SandboxNotFound("sandbox not found")])
def test_e2b_clients_get_their_answer_for_a_missing_sandbox(method: str, path: str, error: Exception) -> None:
    """`/health` answered 400 and the others 404 or 400, from which `is_running()` raises instead of returning False."""
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    front: Any = None
    answer = ClusterFront._render(front, error, ROUTES.find_route(scope), Place(Kind.SANDBOX, "s1"))
    found = json.loads(bytes(answer.body))
    assert (answer.status_code, found["code"], found["sandboxId"]) == (502, 502, "s1")
    assert found["message"].startswith("The sandbox was not found")


@pytest.mark.parametrize("option", [{"workers": 2}, {"state": "d"}, {"audit": "f"}, {"usage": "f"}])
def test_settings_that_do_not_work_with_ray(option: dict[str, Any]) -> None:
    check_cluster_settings(Settings(**option))
    check_cluster_settings(Settings(ray="auto"))
    with pytest.raises(InvalidRequest, match="does not work with --ray"):
        check_cluster_settings(Settings(ray="auto", **option))
