"""A guest on a node sees no more than a guest of the local backend: nothing of Ray's files, sockets or environment."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator

import pytest
from tests.cluster.local_ray import start_ray

from warmcell import ExecRequest, ProcessBackend, RayBackend

LOOK = """
import json, os, socket
seen = {
    "environment": sorted(os.environ),
    "shm": os.listdir("/dev/shm"),
    "tmp": os.listdir("/tmp"),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
    "token": os.path.exists(os.path.join(HOME, ".ray")),
    "abstract": [line for line in open("/proc/net/unix") if "@" in line] if os.path.exists("/proc/net/unix") else [],
}
for target in TARGETS:
    family = socket.AF_INET if isinstance(target, list) else socket.AF_UNIX
    with socket.socket(family) as one:
        one.settimeout(2)
        try:
            one.connect(tuple(target) if isinstance(target, list) else target)
            seen.setdefault("reached", []).append(target)
        except OSError:
            pass
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def backend() -> Iterator[RayBackend]:
    start_ray()
    with RayBackend() as made:
        yield made


def test_nothing_of_ray_is_visible_to_a_guest(backend: RayBackend) -> None:
    ray = start_ray()
    node = ray.nodes()[0]
    sockets = [node["ObjectStoreSocketName"], node["RayletSocketName"]]
    assert all(os.path.exists(path) for path in sockets), "there is something to find"
    head, _, port = ray.get_runtime_context().gcs_address.partition(":")
    targets = [*sockets, [head, int(port)], [node["NodeManagerAddress"], node["NodeManagerPort"]]]
    code = LOOK.replace("TARGETS", json.dumps(targets)).replace("HOME", repr(os.path.expanduser("~")))
    request = ExecRequest("python", code, 30)
    with ProcessBackend() as local:
        usual = json.loads(local.execute_blocking(request).stdout)
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="plasma"):  # Ray's own files there have no names
        seen = json.loads(backend.execute_blocking(request).stdout)
    assert seen == usual
    assert "reached" not in seen and not seen["token"]
    assert not [name for name in seen["environment"] if "RAY" in name]


def test_the_environment_of_the_actor_is_not_the_guests(backend: RayBackend) -> None:
    """A shell, which is not forked from a warm interpreter."""
    shown = backend.execute_blocking(ExecRequest("command", "env; ls -a /tmp /dev/shm", 30)).stdout
    assert "RAY" not in shown and "ray" not in shown
