"""Containers, exec, files and images through the Docker SDK for Python: the calls that harnesses make."""

from __future__ import annotations

import io
import socket
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.docker_api.conftest import DockerServer
from tests.helpers import until

docker = pytest.importorskip("docker")
Container = docker.models.containers.Container
Client = docker.DockerClient


def tar_of(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content.encode()))
    return buffer.getvalue()


def test_versions_and_what_there_is(client: Client, server: DockerServer) -> None:
    assert client.ping()
    assert client.version()["ApiVersion"] == "1.47"
    assert client.info()["OSType"] == "linux"
    assert [network.name for network in client.networks.list()] == ["bridge", "none"]
    with pytest.raises(docker.errors.APIError, match="too new"):
        docker.APIClient(base_url=f"unix://{server.socket}", version="1.99").version()


def test_run_gives_output_and_exit_status(client: Client) -> None:
    script = "echo out; echo err >&2"
    assert client.containers.run("busybox:1", ["sh", "-c", script], remove=True) == b"out\n"
    assert client.containers.run("busybox:1", ["sh", "-c", script], remove=True, stdout=False, stderr=True) == b"err\n"
    with pytest.raises(docker.errors.ContainerError) as failure:
        client.containers.run("busybox:1", ["sh", "-c", "exit 4"], remove=True)
    assert failure.value.exit_status == 4
    with pytest.raises(docker.errors.APIError, match="executable file not found"):
        client.containers.run("busybox:1", "no-such-program", remove=True)
    with pytest.raises(docker.errors.ImageNotFound):
        client.containers.create("no-such-image:1", "true")


def test_what_was_asked_for_is_in_force(client: Client) -> None:
    made = client.containers.create(
        "busybox:1",
        ["sh", "-c", "echo $A $PWD $(id -u) $0", "zero"],
        environment={"A": "b c"},
        working_dir="/made/here",
        user="1234",
        mem_limit="64m",
        pids_limit=50,
        labels={"who": "me"},
        name="asked",
    )
    made.start()
    assert made.wait()["StatusCode"] == 0
    assert made.logs() == b"b c /made/here 1234 zero\n"
    made.reload()
    assert made.attrs["HostConfig"]["Memory"] == 64 << 20
    assert made.labels["who"] == "me" and made.status == "exited"
    assert client.containers.list() == []
    by_name = [{"name": name} for name in ("asked", "sk", "^asked$", "^/asked$", "/asked", "^as", "ed$")]
    for filters in (*by_name, {"label": "who=me"}, {"status": "exited"}, {"ancestor": "busybox:1"}):
        assert [found.id for found in client.containers.list(all=True, filters=filters)] == [made.id]
    for filters in ({"label": "who=you"}, {"name": "^ask$"}, {"name": "^sked$"}, {"name": "^sked"}, {"name": "ask$"}):
        assert client.containers.list(all=True, filters=filters) == []
    with pytest.raises(docker.errors.APIError, match="already in use"):
        client.containers.create("busybox:1", "true", name="asked")
    made.rename("other")
    assert client.containers.get("other").id == client.containers.get(made.id[:10]).id == made.id


def test_exec_streams_and_states(client: Client, sleeper: Container) -> None:
    for _ in range(5):  # the first bytes must not get lost behind the head of the response
        assert sleeper.exec_run("id -u") == (0, b"0\n")
    both = sleeper.exec_run(["sh", "-c", "echo out; echo err >&2; exit 3"], demux=True)
    assert both == (3, (b"out\n", b"err\n"))
    assert sleeper.exec_run("no-such-program").exit_code == 127
    assert sleeper.exec_run("sh -c 'echo $X $PWD'", environment={"X": "y"}, workdir="/bin").output == b"y /bin\n"
    assert b"/dev/pts/" in sleeper.exec_run("ls -l /proc/self/fd/0", tty=True).output
    large = sleeper.exec_run(
        ["sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo 0123456789abcdef0123456789abcdef; i=$((i+1)); done"]
    )
    assert len(large.output) == 3000 * 33
    exec_id = client.api.exec_create(sleeper.id, "sleep 1000")["Id"]
    assert client.api.exec_start(exec_id, detach=True) in (b"", "")
    pid = client.api.exec_inspect(exec_id)["Pid"]
    assert client.api.exec_inspect(exec_id)["Running"]
    sleeper.exec_run(f"kill -TERM {pid}")
    until(lambda: not client.api.exec_inspect(exec_id)["Running"])
    assert client.api.exec_inspect(exec_id)["ExitCode"] == 143
    with pytest.raises(docker.errors.APIError, match="one user"):
        sleeper.exec_run("id", user="nobody")


def test_output_waits_until_the_head_was_read(client: Client, server: DockerServer, sleeper: Container) -> None:
    """The SDK parses the head with a buffer, and loses what it read with it."""
    exec_id = client.api.exec_create(sleeper.id, "echo output")["Id"]
    connected = server.send(f"POST /exec/{exec_id}/start")
    connected.recv(1, socket.MSG_PEEK)
    until(lambda: client.api.exec_inspect(exec_id)["ExitCode"] == 0)
    assert connected.recv(65536, socket.MSG_PEEK).endswith(b"\r\n\r\n")
    connected.recv(65536)
    assert connected.recv(65536).endswith(b"output\n")
    connected.close()


def test_exec_reads_stdin_over_the_connection(client: Client, sleeper: Container) -> None:
    exec_id = client.api.exec_create(sleeper.id, "cat", stdin=True)["Id"]
    stream = client.api.exec_start(exec_id, socket=True)
    stream._sock.sendall(b"word\n")
    assert stream.read(8 + 5) == b"\x01\0\0\0\0\0\0\x05word\n"
    stream._sock.shutdown(1)
    assert stream.read(1) == b""
    stream.close()
    until(lambda: client.api.exec_inspect(exec_id)["ExitCode"] == 0)


def test_files_go_in_and_out(client: Client) -> None:
    made = client.containers.create("busybox:1", ["cat", "/data/a.txt"])
    made.put_archive("/", tar_of(**{"data/a.txt": "hello", "data/b": "x"}))  # before the start, as `docker cp` can
    made.start()
    assert (made.wait()["StatusCode"], made.logs()) == (0, b"hello")
    chunks, status = made.get_archive("/data")
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        assert archive.getnames() == ["data", "data/a.txt", "data/b"]
    assert status["name"] == "data" and status["mode"] & 1 << 31
    with pytest.raises(docker.errors.NotFound):
        made.get_archive("/nothing")
    with pytest.raises(docker.errors.NotFound):
        made.put_archive("/nothing", tar_of(a="b"))


def test_files_outlive_a_stop_and_processes_do_not(sleeper: Container) -> None:
    sleeper.exec_run(["sh", "-c", "echo kept > /root.txt; setsid sleep 1000 &"])
    sleeper.stop(timeout=20)
    assert sleeper.wait()["StatusCode"] == 143
    sleeper.start()
    assert sleeper.exec_run("cat /root.txt").output == b"kept\n"
    assert [row[-1] for row in sleeper.top()["Processes"]] == ["tail -f /dev/null"]
    sleeper.restart(timeout=20)
    sleeper.kill()
    assert sleeper.wait()["StatusCode"] == 137
    assert sleeper.stats(stream=False)["id"] == sleeper.id


def test_logs_follow_and_tail(client: Client) -> None:
    made = client.containers.create("busybox:1", ["sh", "-c", "echo 1; echo 2; read line; echo $line"], stdin_open=True)
    attached = made.attach_socket(params={"stdin": 1, "stream": 1})
    made.start()
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.extend(made.logs(stream=True, follow=True)))
    reader.start()
    until(lambda: b"".join(seen) == b"1\n2\n")
    attached._sock.sendall(b"three\n")
    reader.join(60)
    assert b"".join(seen) == b"1\n2\nthree\n"
    assert made.logs(tail=1) == b"three\n"
    assert made.logs(timestamps=True, tail=1).endswith(b"Z three\n")
    attached.close()


def test_a_container_that_exceeds_its_memory_says_so(client: Client) -> None:
    made = client.containers.run(
        "busybox:1", ["sh", "-c", "x=a; while true; do x=$x$x; done"], mem_limit="64m", detach=True
    )
    assert made.wait()["StatusCode"] in (2, 137)  # the shell may notice first that there is no more
    made.reload()
    assert not made.attrs["State"]["Running"]


def test_events_volumes_and_ports(client: Client, server: DockerServer) -> None:
    client.volumes.create("shared")
    (server.binds / "page").mkdir()
    (server.binds / "page/index.html").write_text("from a container")
    mounts = {"shared": {"bind": "/shared", "mode": "rw"}, str(server.binds / "page"): {"bind": "/page", "mode": "ro"}}
    script = "echo x > /shared/made; exec httpd -f -p 8080 -h /page"
    made = client.containers.run(
        "busybox:1", ["sh", "-c", script], detach=True, volumes=mounts, ports={"8080/tcp": None}
    )
    made.reload()
    (binding,) = made.ports["8080/tcp"]
    assert binding["HostIp"] == "127.0.0.1"
    requests = pytest.importorskip("requests")
    session = requests.Session()
    session.trust_env = False

    def page() -> Any:
        try:
            return session.get(f"http://127.0.0.1:{binding['HostPort']}/", timeout=20).text
        except requests.ConnectionError:
            return None

    until(lambda: page() == "from a container")
    with pytest.raises(docker.errors.APIError, match="in use"):
        client.volumes.get("shared").remove()
    made.remove(force=True)
    assert client.containers.run("busybox:1", "cat /shared/made", volumes=["shared:/shared"], remove=True) == b"x\n"
    client.volumes.get("shared").remove()
    found = client.events(since=1, until=int(2e9), decode=True)
    actions = {next(found)["Action"] for _ in range(4)}
    found.close()
    assert "create" in actions


def test_images_are_tagged_saved_loaded_and_removed(client: Client, tmp_path: Path) -> None:
    image = client.images.get("busybox:1")
    assert client.images.get(image.short_id).id == image.id
    assert image.tag("other/name", "2")
    assert {"busybox:1", "other/name:2"} <= set(client.images.get("other/name:2").tags)
    saved = b"".join(client.images.get("other/name:2").save(named="other/name:2"))
    client.images.remove("other/name:2")
    with pytest.raises(docker.errors.ImageNotFound):
        client.images.get("other/name:2")
    (loaded,) = client.images.load(saved)
    assert "other/name:2" in loaded.tags
    client.images.remove("other/name:2")
    made = client.containers.create("busybox:1", "true")
    with pytest.raises(docker.errors.APIError, match="is using"):
        client.images.remove("busybox:1")
    made.remove()
    with pytest.raises(docker.errors.APIError):
        client.images.pull("127.0.0.1:1/nothing", tag="1")
