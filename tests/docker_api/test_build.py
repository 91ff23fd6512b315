"""Builds through the Docker SDK: the calls of harnesses, hostile contexts, and clients that hang up."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.docker_api.conftest import DockerServer
from tests.helpers import until

from warmcell.core.errors import ExecutionFailed
from warmcell.interfaces.docker.image_work import ImageWork

docker = pytest.importorskip("docker")
Client = docker.DockerClient


def context_of(*members: tuple[str, bytes, str], **files: str) -> io.BytesIO:
    """A context: files, and members as name, type and link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            archive.addfile(member)
    buffer.seek(0)
    return buffer


def test_an_image_is_built_and_run(client: Client) -> None:
    dockerfile = (
        'FROM busybox:1\nARG NAME=x\nCOPY note /note\nRUN echo "$NAME" > /name\nCMD ["cat", "/note", "/name"]\n'
    )
    context = context_of(Dockerfile=dockerfile, note="copied\n")
    image, log = client.images.build(
        fileobj=context, custom_context=True, encoding="gzip", tag="made:1", buildargs={"NAME": "me"}
    )
    assert "made:1" in image.tags
    assert "Step 1/" in "".join(message.get("stream", "") for message in log)
    assert client.containers.run("made:1", remove=True) == b"copied\nme\n"
    client.images.remove("made:1")
    broken = context_of(Dockerfile="FROM busybox:1\nRUN echo printed; exit 7\n")
    with pytest.raises(docker.errors.BuildError, match="7") as failure:
        client.images.build(fileobj=broken, custom_context=True, encoding="gzip", tag="broken:1")
    assert "printed" in "".join(message.get("stream", "") for message in failure.value.build_log)


def test_hostile_contexts_are_refused(client: Client, server: DockerServer) -> None:
    (server.binds.parent / "outside/Dockerfile").write_text("SECRET of the host\n")
    outside = str(server.binds.parent / "outside")
    out = "not in the build context"
    for context, name, message in (
        (context_of(("../up", tarfile.REGTYPE, "")), "Dockerfile", "refused"),
        (context_of(("way", tarfile.SYMTYPE, outside)), "way/Dockerfile", out),
        (context_of(("Dockerfile", tarfile.SYMTYPE, f"{outside}/Dockerfile")), "Dockerfile", out),
        (context_of(note="x"), f"{outside}/Dockerfile", out),
        (context_of(note="x"), "../../outside/Dockerfile", out),
        (context_of(note="x"), "Dockerfile", "Cannot locate"),
    ):
        with pytest.raises(docker.errors.APIError, match=message) as refusal:
            client.images.build(fileobj=context, custom_context=True, encoding="gzip", dockerfile=name)
        assert "SECRET" not in str(refusal.value)
    bomb = io.BytesIO()
    with tarfile.open(fileobj=bomb, mode="w:gz") as archive:
        member = tarfile.TarInfo("zeros")
        member.size = 128 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(docker.errors.APIError, match="times its size"):
        client.images.build(fileobj=io.BytesIO(bomb.getvalue()), custom_context=True, encoding="gzip")
    link = context_of(
        ("way", tarfile.SYMTYPE, outside), Dockerfile="FROM busybox:1\nCOPY way /copied\nCMD ls /copied/\n"
    )
    with pytest.raises((docker.errors.BuildError, docker.errors.ContainerError)):
        client.images.build(fileobj=link, custom_context=True, encoding="gzip", tag="linked:1")
        client.containers.run("linked:1", ["cat", "/copied/Dockerfile"], remove=True)


@pytest.mark.parametrize("command", ["exec tail -f /dev/null", "while true; do i=$((i+1)); echo x > /$i; done"])
def test_a_client_that_hangs_up_ends_its_build(server: DockerServer, command: str) -> None:
    context = context_of(Dockerfile=f"FROM busybox:1\nRUN echo begun; {command}\n").getvalue()
    connected = server.send("POST /build?t=endless:1", context)
    seen = b""
    while b"begun" not in seen.partition(b"RUN")[2].partition(b"\\n")[2]:
        piece = connected.recv(65536)
        assert piece, seen
        seen += piece
    connected.close()
    (state,) = server.temporary.glob("warmcell-serve-*")
    until(lambda: not any(name.startswith("build-") for name in os.listdir(state)))
    layers = server.binds.parent / "cache/warmcell/images/layers"
    assert list(layers.glob(".unpack-*")) == []
    assert server.client.ping()


async def test_images_leave_some_of_the_disk_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads that each are small filled the disk together: nothing removes images that have a name."""
    work = ImageWork(str(tmp_path), str(tmp_path / "missing/store"))
    job = await work.start()
    job.check()
    full = SimpleNamespace(f_blocks=1000, f_bavail=49, f_frsize=1 << 20)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(ExecutionFailed, match="less than 50 MB of the disk free"):
        job.check()
    for _ in range(100):  # more than the slots: those that are refused keep none
        with pytest.raises(ExecutionFailed, match="less than 50 MB of the disk free"):
            await work.start()
    full.f_bavail = 50
    (await work.start()).end()
