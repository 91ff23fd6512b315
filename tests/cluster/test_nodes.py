"""Nodes of a real Ray cluster: they are examined, runs spread over them, join, and are lost with them."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.helpers import until

from warmcell import Case, ExecRequest, ProcessConfig, RayBackend, judge
from warmcell.core.errors import NodeLost
from warmcell.diagnosis.doctor import ATTACKS
from warmcell.interfaces.cli import main

CONFIG = ProcessConfig(pool_size=1)


def test_each_node_is_attacked(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--cluster", "--json"])
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert sorted(node["id"] for node in nodes) == sorted(one.node_id for one in cluster.worker_nodes)
    for node in nodes:
        rows = {row["name"]: row["status"] for row in node["rows"]}
        assert rows["native cage"] == rows["host files"] == rows["system calls"] == "works"
        assert [name for name, _ in ATTACKS] == list(rows)[1 : len(ATTACKS) + 1]
    assert status == (0 if all(node["default_available"] for node in nodes) else 1)


def test_a_killed_node_costs_no_verdict_and_a_new_one_is_used(cluster: Any) -> None:
    def kill_one(index: int, _: object) -> None:
        judged.append(index)
        if len(judged) == 60:
            threading.Thread(target=cluster.remove_node, args=(min(cluster.worker_nodes, key=id), False)).start()

    judged: list[int] = []
    program = ExecRequest("python", "n = int(input()); print(n * 2 if n % 5 else 0)", 10)
    cases = [Case(str(n), str(n * 2)) for n in range(300)]
    with RayBackend(config=CONFIG) as backend:
        assert sorted(node.cores for node in backend.nodes()) == [1, 1]
        verdicts = judge(program, cases, backend=backend, on_verdict=kill_one, concurrency=8)
        wanted = ["accepted" if n % 5 or n == 0 else "wrong_answer" for n in range(300)]
        assert [verdict.status for verdict in verdicts] == wanted
        assert sorted(judged) == list(range(300))
        until(lambda: len(backend.nodes()) == 1)
        cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        until(lambda: [node.isolation_class for node in backend.nodes()] == ["process+sandbox"] * 2)


def test_a_run_is_lost_with_its_node_if_it_may_not_be_repeated(cluster: Any) -> None:
    with RayBackend(config=CONFIG, retries=0) as backend:
        events = backend.stream_blocking(
            ExecRequest("python", "print('on', flush=True); import time; time.sleep(60)", 90)
        )
        assert next(events).data == b"on\n"
        node = next(node for node in backend.nodes() if node.running)
        cluster.remove_node(next(one for one in cluster.worker_nodes if one.node_id == node.id), False)
        with pytest.raises(NodeLost) as caught:
            next(events)
        assert (caught.value.node, caught.value.fault, caught.value.retryable) == (node.id, "host", True)
        assert backend.execute_blocking(ExecRequest("python", "print('next')", 20)).stdout == "next\n"
