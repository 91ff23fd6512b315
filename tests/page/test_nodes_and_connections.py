"""What the page shows of a cluster and of a sandbox's network. The server's answers are set here."""

from __future__ import annotations

from typing import Any

from tests.page.conftest import NewPage
from tests.serve.conftest import Server
from tests.serve.requests import create_sandbox

NODE = {
    "address": "192.0.2.7",
    "isolation_class": "process+sandbox",
    "cores": 16,
    "gpus": 2,
    "running": 5,
    "reason": "",
}
UNFIT = {**NODE, "id": "b" * 56, "isolation_class": "unavailable", "running": 0, "reason": "no user namespaces"}
CONNECTION = {"time": 1.8e9, "port": 443, "bytes_sent": 512, "bytes_received": 2048, "rule": "example.org"}


def show(page: Any, url: str, path: str, answer: object, view: str) -> list[list[str]]:
    """The cells of the first table, row by row."""
    page.route(path, lambda route: route.fulfill(json=answer))
    page.goto(url)
    table = page.get_by_role("region", name=view).get_by_role("table")
    table.wait_for()
    rows: list[list[str]] = table.evaluate(
        "table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


def test_nodes_of_a_cluster(server: Server, new_page: NewPage) -> None:
    answer = {"runs": [], "sandboxes": [], "nodes": [{**NODE, "id": "a" * 56}, UNFIT]}
    rows = show(new_page(), f"{server.url}/#/activity", "**/v1/activity", answer, "Nodes of the cluster")
    assert rows == [
        ["ready", "aaaaaaaa", "192.0.2.7", "process+sandbox", "16", "2", "5"],
        ["no user namespaces", "bbbbbbbb", "192.0.2.7", "unavailable", "16", "2", "0"],
    ]


def test_connections_of_a_sandbox(server: Server, new_page: NewPage) -> None:
    at = create_sandbox(server.client)
    answer = [
        {**CONNECTION, "host": "example.org", "is_allowed": True},
        {**CONNECTION, "host": "evil.example", "is_allowed": False},
    ]
    url = f"{server.url}/#{at.removeprefix('/v1')}/connections"
    rows = show(new_page(), url, "**/connections", answer, "Connections")
    assert [(row[0], *row[2:4]) for row in rows] == [
        ("refused", "evil.example", "443"),
        ("allowed", "example.org", "443"),
    ]
    assert "2" in rows[1][5] and rows[1][6] == "example.org"
    server.client.delete(at)
