"""E2B's own SDK, unmodified, over a server that is killed. `scripts/test-cluster` installs the SDK and runs this."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from tests.cluster.local_ray import is_cluster_lane
from tests.helpers import has_user_namespaces, require
from tests.serve.passed_socket import start
from tests.serve.requests import key_options

e2b = import_module("e2b") if is_cluster_lane() else pytest.importorskip("e2b")


@contextmanager
def serve_until_killed(listening: socket.socket, state: Path, *options: str) -> Iterator[None]:
    with start(listening, "--state", str(state), *options) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield


@pytest.mark.parametrize("has_key", [False, True])
def test_a_killed_server_gives_paused_sandboxes_and_volumes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    require(has_user_namespaces(), "this host has no user namespaces")
    monkeypatch.setenv("E2B_API_KEY", "e2b_" + "0" * 40)
    options = (*key_options(tmp_path, has_key), "--plain-volumes") if has_key else ()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"):
            monkeypatch.setenv(name, url)
        with serve_until_killed(listening, tmp_path / "state", *options):
            volume = e2b.Volume.create("shared")
            volume.write_file("/before.txt", "before")
            box = e2b.Sandbox.create(
                timeout=3000, metadata={"for": "us"}, envs={"A": "b"}, volume_mounts={"/mnt/shared": volume}
            )
            box.commands.run("echo kept > file; echo guest > /mnt/shared/guest.txt")
            snapshot = box.create_snapshot()
            box.pause()
        with serve_until_killed(listening, tmp_path / "state", *options):
            (listed,) = e2b.Sandbox.list().next_items()
            assert (listed.sandbox_id, listed.state.value, listed.metadata) == (box.sandbox_id, "paused", {"for": "us"})
            box.connect(timeout=3000)  # the object from before the kill
            again = box.commands.run("cat file; echo $A; cat /mnt/shared/before.txt")
            assert again.stdout == "kept\nb\nbefore"
            assert volume.read_file("/guest.txt") == "guest\n"
            assert [found.name for found in e2b.Volume.list()] == ["shared"]
            copy = e2b.Sandbox.create(snapshot.snapshot_id, timeout=3000)
            assert copy.files.read("file") == "kept\n"
            box.pause()
        with serve_until_killed(listening, tmp_path / "state", *options):
            connected = e2b.Sandbox.connect(box.sandbox_id, timeout=3000)
            assert connected.files.read("/mnt/shared/guest.txt") == "guest\n"
            assert connected.kill() and copy.kill() is not has_key  # with a key, what was never paused was not saved
            assert e2b.Volume.destroy(volume.volume_id)
