"""Images on a cluster: each node gets one once, by digest, from a store that has it. Without Ray."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until_async
from tests.images.image_files import Layout, entry, layer
from tests.unit.backends.stand_in_nodes import StandInNodes

from warmcell import ImageInvalid, NodeLost, RayBackend
from warmcell.backends.ray import cluster_images, stored_images
from warmcell.backends.ray.node_link import NodeLink
from warmcell.backends.ray.stored_images import StoredImages
from warmcell.images import ImageStore
from warmcell.lifetime.portal import portal

#: Cannot be compressed, so that it takes several chunks.
DATA = os.urandom(3000)


class Asked(StoredImages):
    """Counts what is asked of a node's store. Nothing is pulled from a network."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path
        self.counts = Counter[str]()
        self.registry: Path | None = None

    def write(self, *values: Any) -> None:
        self.counts["write"] += 1
        super().write(*values)

    def finish(self, digest: str) -> None:
        self.counts["finish"] += 1
        super().finish(digest)

    def pull(self, reference: str) -> tuple[str, str]:
        self.counts["pull"] += 1
        assert self.registry is not None, f"{reference} was asked of a registry"
        image = ImageStore(self.path).import_(self.registry, name=reference.partition("@")[0])
        return image.name, image.digest


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    """The store of the driver's host."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stored_images, "CHUNK", 1000)
    monkeypatch.setattr(cluster_images, "CHUNK", 1000)
    return ImageStore()


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    files = [layer(entry("etc", kind=b"5", mode=0o755), entry(f"etc/{n}", DATA)) for n in "ab"]
    return Layout(files, compress=True).write(tmp_path / "layout")


async def open_nodes(tmp_path: Path, *ids: str) -> tuple[StandInNodes, RayBackend, dict[str, NodeLink]]:
    nodes = StandInNodes(*ids)
    backend = nodes.backend()
    await portal.call_async(backend.describe_nodes)
    await until_async(lambda: len(backend.links()) == len(ids))
    for name, transport in nodes.transports.items():
        transport.service.images = Asked(tmp_path / name)
    return nodes, backend, {link.info.id: link for link in backend.links()}


def images_of(nodes: StandInNodes, node: str) -> Any:
    return nodes.transports[node].service.images


async def test_an_image_of_this_host_is_copied_once(tmp_path: Path, own_store: ImageStore, layout: Path) -> None:
    image = own_store.import_(layout, name="app:1")
    nodes, backend, links = await open_nodes(tmp_path, "a", "b")
    found = await asyncio.gather(*(backend.provide_image(links["a"], "app:1") for _ in range(3)))
    assert set(found) == {f"app@{image.digest}"} == {await backend.provide_image(links["a"], image)}
    there = ImageStore(tmp_path / "a").get(found[0])
    assert (there.digest, there.size) == (image.digest, image.size)
    assert (Path(there.layer_paths[1]) / "etc/b").read_bytes() == DATA
    counts = images_of(nodes, "a").counts
    assert counts["finish"] == 1 and counts["write"] > 4
    assert not images_of(nodes, "b").counts
    await backend.aclose()


async def test_a_neighbour_has_what_this_host_has_not(tmp_path: Path, layout: Path) -> None:
    _, backend, links = await open_nodes(tmp_path, "a", "b")
    image = ImageStore(tmp_path / "b").import_(layout, name="app:1")
    assert await backend.provide_image(links["a"], "app:1") == f"app@{image.digest}"
    assert ImageStore(tmp_path / "a").get(image.digest).size == image.size
    await backend.aclose()


async def test_only_what_no_host_has_is_pulled_and_only_once(tmp_path: Path, layout: Path) -> None:
    nodes, backend, links = await open_nodes(tmp_path, "a", "b")
    for node in links:
        images_of(nodes, node).registry = layout
    found = await asyncio.gather(*(backend.provide_image(link, "app:1") for link in links.values()))
    assert len(set(found)) == 1
    counts = [images_of(nodes, node).counts for node in links]
    assert sum(count["pull"] for count in counts) == 1 == sum(count["finish"] for count in counts)
    await backend.aclose()


async def test_blobs_that_were_changed_on_the_way_are_refused(
    tmp_path: Path, own_store: ImageStore, layout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = own_store.import_(layout, name="app:1")
    _, backend, links = await open_nodes(tmp_path, "a")
    read = StoredImages.read_blob
    monkeypatch.setattr(StoredImages, "read_blob", lambda *values: read(*values)[:-1] + b"!")
    with pytest.raises(ImageInvalid, match="digest"):
        await backend.provide_image(links["a"], "app:1")
    assert ImageStore(tmp_path / "a").list() == []
    monkeypatch.setattr(StoredImages, "read_blob", read)
    assert await backend.provide_image(links["a"], "app:1") == f"app@{image.digest}"
    ImageStore(tmp_path / "a").prune()  # nothing holds the store's lock any more
    await backend.aclose()


async def test_a_node_that_is_lost_meanwhile_says_so(
    tmp_path: Path, own_store: ImageStore, layout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_store.import_(layout, name="app:1")
    nodes, backend, links = await open_nodes(tmp_path, "a")
    monkeypatch.setattr(StoredImages, "list_blobs", lambda *_: nodes.kill("a") or [("sha256:" + "0" * 64, 5)])
    with pytest.raises(NodeLost):
        await backend.provide_image(links["a"], "app:1")
    await backend.aclose()
