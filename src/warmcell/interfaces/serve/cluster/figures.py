"""What the front adds to the figures of its nodes: the nodes themselves, and the queue in front of them."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from warmcell.backends.ray.placement import Node
from warmcell.interfaces.serve.responses import json_response
from warmcell.observe.metrics import METRICS_HEADERS


def add_nodes(response: Response, nodes: Sequence[Node], waiting: int) -> Response:
    """To the merged `/metrics` or `/v1/activity`."""
    if response.media_type != "application/json":
        return Response(bytes(response.body).decode() + _metrics(nodes, waiting), headers=METRICS_HEADERS)
    activity: dict[str, Any] = json.loads(bytes(response.body))
    return json_response({**activity, "nodes": [dataclasses.asdict(node) for node in nodes]})


def _metrics(nodes: Sequence[Node], waiting: int) -> str:
    states = Counter("unavailable" if node.reason else "ready" for node in nodes)
    lines = ["# HELP warmcell_nodes Nodes of the cluster.", "# TYPE warmcell_nodes gauge"]
    lines += [f'warmcell_nodes{{state="{state}"}} {states[state]}' for state in ("ready", "unavailable")]
    lines += ["# HELP warmcell_cluster_waiting Runs that wait for a node.", "# TYPE warmcell_cluster_waiting gauge"]
    return "\n".join([*lines, f"warmcell_cluster_waiting {waiting}", ""])
