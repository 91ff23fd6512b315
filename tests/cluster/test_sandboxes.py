"""Sandboxes on nodes: the surface of `Sandbox`, and what becomes of them when their node is lost."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until
from tests.image_roots import make_root

from warmcell import (
    AsyncSandbox,
    CommandNotFound,
    ExecutionTimeout,
    FetchPolicy,
    InvalidRequest,
    Limits,
    NetworkingDisabled,
    NodeLost,
    RayBackend,
    Sandbox,
    SandboxDestroyed,
)
from warmcell.errors import FetchFailed, FileMissing
from warmcell.images import ImageStore

SERVER = "import http.server as h; h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler).serve_forever()"


@pytest.fixture(scope="module")
def backend(cluster: Any) -> Any:
    with RayBackend() as made:
        yield made


def test_the_surface_of_a_sandbox(backend: RayBackend) -> None:
    with Sandbox(backend=backend, env={"WHO": "me"}, limits=Limits(memory_mb=256), forkable=True) as sandbox:
        assert (sandbox.limits.memory_mb, sandbox.capabilities().isolation_class) == (256, "process+sandbox")
        sandbox.write_file("a/b.txt", "héllo", parents=True)
        assert sandbox.read_text("a/b.txt") == "héllo" == sandbox.exec("cat", ["a/b.txt"]).stdout
        assert [entry.name for entry in sandbox.list_dir()] == ["a"]
        assert [(change.path, change.kind) for change in sandbox.diff()][-1] == ("a/b.txt", "created")
        heard: list[str] = []
        assert sandbox.sh("echo $WHO; exit 3", on_stdout=heard.append).exit_code == 3
        assert "".join(heard) == "me\n"
        with pytest.raises(FileMissing):
            sandbox.read_file("missing")
        with pytest.raises(CommandNotFound):
            sandbox.exec("no-such-command")
        with pytest.raises(ExecutionTimeout) as caught:
            sandbox.run("print('so far', flush=True)\nwhile True: pass", timeout=1)
        assert caught.value.result is not None and caught.value.result.stdout == "so far\n"
        with sandbox.session() as session:
            session.run("x = 41")
            branch = session.fork()
            branch.run("x = 0")
            assert session.run("x + 1").value == "42"
            branch.sandbox.close()
        fork = sandbox.fork()
        fork.write_file("a/b.txt", "fork")
        assert (sandbox.read_text("a/b.txt"), fork.read_text("a/b.txt")) == ("héllo", "fork")
        fork.close()
        with pytest.raises(NetworkingDisabled):
            sandbox.fetch("http://127.0.0.1:9/")
    with pytest.raises(SandboxDestroyed):
        sandbox.read_file("a/b.txt")
    until(lambda: [node.running for node in backend.nodes()] == [0, 0])


def test_what_lives_between_two_calls(backend: RayBackend) -> None:
    with Sandbox(backend=backend, fetch_policy=FetchPolicy(allowed_domains=["example.org"])) as sandbox:
        process = sandbox.spawn(["cat"])
        process.write(b"in")
        process.close_stdin()
        assert process.wait().stdout == "in"
        with sandbox.watch() as watch:
            sandbox.write_file("new.txt", "x")
            assert next(iter(watch)).path == "new.txt"
        sandbox.spawn(["python3", "-c", SERVER])
        port = sandbox.expose(8123)

        def fetch() -> bool:
            try:
                with urllib.request.urlopen(f"{port.url}/new.txt", timeout=10) as answer:
                    return bool(answer.read() == b"x")
            except OSError:
                return False

        until(fetch)
        with pytest.raises(FetchFailed) as caught:  # by the rules of its policy, on the node
            sandbox.fetch("http://127.0.0.1:9/")
        assert caught.value.reason == "refused"


async def is_lost(sandbox: AsyncSandbox) -> bool:
    try:
        await sandbox.read_text("kept.txt")
    except NodeLost:
        return True
    return False


async def test_sandboxes_spread_over_nodes_and_are_lost_with_theirs(cluster: Any) -> None:
    backend = RayBackend()
    until(lambda: [node.reason for node in backend.nodes()] == ["", ""])  # one of them may still be starting
    sandboxes = [AsyncSandbox(backend=backend) for _ in range(4)]
    for sandbox in sandboxes:
        await sandbox.write_file("kept.txt", sandbox.id)
    nodes = {sandbox.id.partition("-")[2] for sandbox in sandboxes}
    assert len(nodes) == 2
    gone = next(one for one in cluster.worker_nodes if one.node_id[:8] in nodes)
    running = await sandboxes[0].spawn("sleep 600")
    cluster.remove_node(gone, False)
    for sandbox in sandboxes:
        if sandbox.id.endswith(gone.node_id[:8]):
            while not await is_lost(sandbox):  # its processes end a moment after Ray's
                await asyncio.sleep(0.05)
            with pytest.raises(NodeLost):
                await sandbox.sh("true")
        else:
            assert (await sandbox.sh("cat kept.txt")).ok
    if sandboxes[0].id.endswith(gone.node_id[:8]):
        with pytest.raises(NodeLost):
            await running.wait()
    async with AsyncSandbox(backend=backend) as other:
        assert (await other.run("print(1)")).stdout == "1\n"
    for sandbox in sandboxes:
        await sandbox.aclose()
    await backend.aclose()
    cluster.add_node(num_cpus=1, object_store_memory=100 << 20)


def test_a_directory_of_this_host_is_not_the_nodes(backend: RayBackend) -> None:
    with Sandbox(backend=backend) as sandbox, pytest.raises(InvalidRequest, match="not on this host"):
        _ = sandbox.work_dir


def test_nodes_with_their_own_stores_get_the_image(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test here: from now on only the nodes with the resource are used."""
    for node in "ab":
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
