"""Clusters of several nodes on this host, each a set of Ray's own processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.local_ray import is_cluster_lane

collect_ignore_glob = [] if is_cluster_lane() else ["test_*.py"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without processors and two nodes with one each. A test that removes one adds another."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    place = tempfile.mkdtemp(prefix="wr", dir="/tmp")
    os.environ["RAY_TMPDIR"] = place
    store = {"object_store_memory": 100 << 20}
    head = {"num_cpus": 0, "include_dashboard": False, **store}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, **store)
        ray.init(address=made.address, log_to_driver=False, logging_level="WARNING")
        made.wait_for_nodes()
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(place, ignore_errors=True)
