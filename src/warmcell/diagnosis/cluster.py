"""Examines each node of a Ray cluster: its actor attacks the cage on its own host, and reports what held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warmcell.backends.ray.backend import RayBackend
from warmcell.backends.ray.placement import Node
from warmcell.core.errors import NodeLost
from warmcell.diagnosis.rows import Row
from warmcell.languages.config import ProcessConfig


@dataclass(frozen=True, slots=True)
class NodeReport:
    """`default_available`: whether the node gets work, and has all protections of `ProcessBackend()`."""

    id: str
    address: str
    cores: int
    rows: list[Row]
    default_available: bool


def examine_cluster(address: str | None = None) -> list[NodeReport]:
    """All nodes at once. `address` as in `RayBackend`."""
    with RayBackend(address, config=ProcessConfig(pool_size=0)) as backend:
        found = backend.examine_nodes()
    return [_report(node, answer) for node, answer in found]


def _report(node: Node, answer: Any) -> NodeReport:
    if answer is None or isinstance(answer, NodeLost):
        reason = node.reason if answer is None else answer.message
        return NodeReport(node.id, node.address, node.cores, [Row("node", "missing", None, reason)], False)
    return NodeReport(node.id, node.address, node.cores, answer.rows, answer.default_available)
