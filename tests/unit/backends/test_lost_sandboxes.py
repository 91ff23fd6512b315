"""A sandbox whose node was lost comes back from a snapshot at a URL that all nodes reach. Without Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import has_user_namespaces, require, until_async
from tests.unit.backends.stand_in_nodes import StandInNodes

from warmcell import AsyncSandbox, InvalidRequest, NodeLost, RayBackend, SnapshotNotFound
from warmcell.backends.ray.node_service import NodeService
from warmcell.lifetime.portal import portal
from warmcell.workspaces import WorkspaceStore

pytest.importorskip("fsspec")


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandInNodes]:
    require(has_user_namespaces(), "this host has no user namespaces")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made = StandInNodes("a", "b")
    yield made
    for transport in made.transports.values():
        await portal.call_async(end_service, transport.service, transport.is_closed)


async def end_service(service: NodeService, is_closed: bool) -> None:
    """What ends with the process of a node, which is this process here."""
    if not is_closed:
        for task in service._tasks.values():
            task.cancel()
        await service.close()
    for server in service._servers.values():
        await (await server)._server.lifespan.shutdown()


def make_backend(nodes: StandInNodes, url: str | None) -> RayBackend:
    backend = nodes.backend()
    backend.snapshot_url = url
    return backend


async def lose(nodes: StandInNodes, backend: RayBackend, sandbox: Any) -> None:
    node = sandbox.id.rpartition("-")[2]
    nodes.kill(node)
    await until_async(lambda: node not in [link.info.id for link in backend.links()])


async def test_a_lost_sandbox_says_so_and_comes_back_where_it_is_told(nodes: StandInNodes, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/shared"
    backend = make_backend(nodes, url)
    sandbox = AsyncSandbox(backend=backend, env={"WHO": "me"})
    await sandbox.write_file("kept.txt", "kept")
    first, kept = sandbox.id, await sandbox.snapshot()
    await sandbox.write_file("later.txt", "later")
    await lose(nodes, backend, sandbox)
    with pytest.raises(NodeLost, match=rf"restore\('{kept}'\)"):
        await sandbox.read_text("kept.txt")
    with pytest.raises(SnapshotNotFound):
        await sandbox.restore("0" * 32)
    with pytest.raises(NodeLost):  # it is not a new, empty one
        await sandbox.list_dir()
    await sandbox.restore(kept)
    assert (await sandbox.sh("cat kept.txt; echo $WHO")).stdout == "keptme\n"
    assert [entry.name for entry in await sandbox.list_dir()] == ["kept.txt"]
    assert sandbox.id.rpartition("-")[2] != first.rpartition("-")[2]
    await sandbox.aclose()
    (known,) = WorkspaceStore(url).snapshots()
    assert known.id == kept
    await backend.aclose()


async def test_without_a_url_there_is_nothing_to_come_back_from(nodes: StandInNodes) -> None:
    backend = make_backend(nodes, None)
    sandbox = AsyncSandbox(backend=backend)
    kept = await sandbox.snapshot()
    await lose(nodes, backend, sandbox)
    for _ in range(2):
        with pytest.raises(NodeLost, match="make another"):
            await sandbox.restore(kept)
    await sandbox.aclose()
    await backend.aclose()


def test_a_path_is_not_a_url() -> None:
    with pytest.raises(InvalidRequest, match="snapshot_url"):
        RayBackend(snapshot_url="/shared/snapshots")
