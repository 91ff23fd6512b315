"""A sandbox with an image on nodes that do not have it: each node gets it from this host, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until
from tests.image_roots import make_root

from warmcell import RayBackend, Sandbox
from warmcell.images import ImageStore


def test_nodes_with_their_own_stores_get_the_image(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in "ab":  # only these two are used
        place = {"XDG_CACHE_HOME": str(tmp_path / node)}
        cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"warmcell": 1}, env_vars=place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "driver"))
    image = ImageStore().import_(make_root(tmp_path / "root", "sh", "cat"), "cell:1")
    with RayBackend() as backend:
        until(lambda: [node.reason for node in backend.nodes()] == ["", ""])
        with Sandbox(backend=backend, image="cell:1") as one, Sandbox(backend=backend, image=image) as other:
            for sandbox in (one, other):
                assert sandbox.sh("cat /etc/os-release").stdout == 'NAME="Cell Linux"\n'
            assert one.id[-8:] != other.id[-8:]
    for node in "ab":
        assert [found.digest for found in ImageStore(tmp_path / node / "warmcell/images").list()] == [image.digest]
