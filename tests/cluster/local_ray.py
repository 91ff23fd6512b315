"""A small Ray cluster on this host for the tests of the cluster lane (`scripts/test-cluster`)."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Any


def is_cluster_lane() -> bool:
    """Ray is heavy: it is installed, and its tests run, in a lane of their own."""
    return bool(os.environ.get("WARMCELL_CLUSTER"))


def start_ray() -> Any:
    """Connects this process to a cluster of its own, once; it ends with the process."""
    import ray

    if not ray.is_initialized():
        place = tempfile.mkdtemp(prefix="wr", dir="/tmp")  # short, for the paths of sockets
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=100 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="WARNING",
            _temp_dir=place,
        )
        atexit.register(ray.shutdown)
    return ray
