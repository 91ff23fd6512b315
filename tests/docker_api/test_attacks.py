"""Clients that ask for the host, send hostile archives, or hang up: refused by name, and nothing is left."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from tests.docker_api.conftest import DockerServer
from tests.helpers import until

docker = pytest.importorskip("docker")
Container = docker.models.containers.Container
Client = docker.DockerClient


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"privileged": True}, "Privileged"),
        ({"cap_add": ["SYS_ADMIN"]}, "CapAdd"),
        ({"devices": ["/dev/kvm"]}, "Devices"),
        ({"device_requests": [docker.types.DeviceRequest(count=-1)]}, "DeviceRequests"),
        ({"network_mode": "host"}, "NetworkMode"),
        ({"network_mode": "container:other"}, "not found"),
        ({"pid_mode": "host"}, "PidMode"),
        ({"ipc_mode": "host"}, "IpcMode"),
        ({"uts_mode": "host"}, "UTSMode"),
        ({"userns_mode": "host"}, "UsernsMode"),
        ({"security_opt": ["seccomp=unconfined"]}, "SecurityOpt"),
        ({"sysctls": {"net.ipv4.ip_forward": "1"}}, "Sysctls"),
        ({"read_only": True}, "ReadonlyRootfs"),
        ({"restart_policy": {"Name": "always"}}, "RestartPolicy"),
        ({"healthcheck": {"Test": ["CMD", "true"]}}, "Healthcheck"),
        ({"extra_hosts": {"a": "127.0.0.1"}}, "ExtraHosts"),
        ({"runtime": "nvidia"}, "Runtime"),
        ({"volumes": ["/etc:/etc"]}, "operator did not allow"),
        ({"volumes": ["/:/host"]}, "operator did not allow"),
        ({"volumes": ["/var/run/docker.sock:/var/run/docker.sock"]}, "operator did not allow"),
        ({"volumes": ["a:/proc"]}, "/proc"),
        ({"volumes": ["../../etc:/e"]}, "'..'"),
        ({"platform": "linux/s390x"}, "platform"),
        ({"ports": {"53/udp": None}}, "only tcp"),
        ({"ports": {"80/tcp": ("192.0.2.1", 80)}}, "loopback"),
        ({"user": "stranger"}, "no user"),
    ],
)
def test_what_opens_the_cage_is_refused_by_name(client: Client, options: dict[str, Any], message: str) -> None:
    with pytest.raises(docker.errors.APIError, match=message) as refusal:
        client.containers.create("busybox:1", "true", **options)
    assert 400 <= refusal.value.status_code < 500
    assert client.containers.list(all=True) == []


def create(server: DockerServer, **fields: Any) -> tuple[int, str]:
    """Status and body of a creation, by a client that sends what it likes."""
    body = json.dumps({"Image": "busybox:1", "Cmd": ["true"], **fields}).encode()
    head = f"POST /containers/create HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    connected, answer = server.connect(), b""
    connected.sendall(head.encode() + body)
    while piece := connected.recv(65536):
        answer += piece
    connected.close()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2].decode()


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ({"privileged": True}, "privileged"),  # Docker does not look at the case of names
        ({"NewOption": 1}, "NewOption"),
        ({"MaskedPaths": ["/etc"]}, "MaskedPaths"),
        ({"Binds": ["volume:/v:readonly"]}, "readonly"),
        ({"Binds": ["volume:/v:rshared"]}, "rshared"),
        ({"Mounts": [{"Type": "volume", "Source": "v", "Target": "/v", "readonly": True}]}, "readonly"),
        ({"Mounts": [{"Type": "volume", "Target": "/v", "VolumeOptions": {"Subpath": "a"}}]}, "Subpath"),
        ({"Mounts": [{"Type": "volume", "Target": "/v", "VolumeOptions": {"DriverConfig": {"a": 1}}}]}, "DriverConfig"),
        ({"Mounts": [{"Type": "volume", "Target": "/v", "BindOptions": {"Propagation": "shared"}}]}, "Propagation"),
        ({"StorageOpt": {"path": "/x"}}, "StorageOpt.path"),
    ],
)
def test_options_that_are_not_known_are_not_ignored(
    server: DockerServer, client: Client, host: dict[str, Any], message: str
) -> None:
    status, answer = create(server, HostConfig=host)
    assert status == 400 and message in answer
    assert create(server, hostConfig=host)[0] == 400
    assert client.containers.list(all=True) == []


WRONG = (1, -1, 0.5, True, "'", "\0", [1], [["x"]], [{"a": 1}], {"80/tcp": 1}, {"80/tcp": [1]}, 1 << 70, "9" * 5000)


@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:20])
def test_values_of_wrong_types_are_the_clients_fault(server: DockerServer, client: Client, value: Any) -> None:
    fields = "CapAdd Mounts Binds PortBindings Ulimits SecurityOpt LogConfig Memory StorageOpt Runtime".split()
    asked: list[dict[str, Any]] = [{"HostConfig": {name: value}} for name in fields]
    asked += [{name: value} for name in "Cmd Entrypoint User Env Labels StopSignal NetworkingConfig HostConfig".split()]
    for fields_of_one in asked:
        status, answer = create(server, **fields_of_one)
        assert status in (201, 400, 403, 404), (fields_of_one, answer)
    for container in client.containers.list(all=True):
        container.remove(force=True)


def test_a_link_in_an_allowed_directory_leads_nowhere_else(client: Client, server: DockerServer) -> None:
    outside = server.binds.parent / "outside"
    (server.binds / "link").symlink_to(outside)
    for source in (server.binds / "link", server.binds / "../outside", outside):
        with pytest.raises(docker.errors.APIError, match=r"operator did not allow|'\.\.'"):
            client.containers.create("busybox:1", "true", volumes=[f"{source}:/o"])


def test_a_container_has_no_network_and_sees_no_host_files(sleeper: Container, server: DockerServer) -> None:
    assert sleeper.exec_run("cat /proc/net/dev").output.count(b":") <= 1  # its own loopback at most
    assert sleeper.exec_run(["ls", str(server.socket)]).exit_code != 0
    with pytest.raises(docker.errors.APIError, match="Privileged"):
        sleeper.exec_run("id", privileged=True)


def test_an_exec_that_no_program_can_be_given_is_refused(sleeper: Container) -> None:
    """JSON may have lone surrogates. The container and its files stay."""
    for options in ({"cmd": ["echo", "\ud800"]}, {"cmd": ["\ud800"]}, {"cmd": "true", "workdir": "/\ud800"}):
        with pytest.raises(docker.errors.APIError, match="not a ") as refusal:
            sleeper.exec_run(**options)
        assert refusal.value.status_code == 400
    assert sleeper.exec_run("echo alive").output == b"alive\n"


def archive(*members: tuple[str, bytes, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            if kind == tarfile.REGTYPE:
                info.size = 3
            made.addfile(info, io.BytesIO(b"bad"))
    return buffer.getvalue()


def test_hostile_archives_stay_in_the_container(sleeper: Container, server: DockerServer) -> None:
    """An absolute link leads to the container's own files: everything is unpacked inside of its cage."""
    canary = server.binds.parent / "outside/canary"
    canary.write_text("good")
    for data, message in (
        (archive(("../up", tarfile.REGTYPE, "")), r"'\.\.'"),
        (archive(("hard", tarfile.LNKTYPE, "../../etc/passwd")), r"'\.\.'"),
        (archive(("node", tarfile.CHRTYPE, "")), "device"),
        (b"not a tar" * 100, "invalid archive"),
    ):
        with pytest.raises(docker.errors.APIError, match=message):
            sleeper.put_archive("/", data)
    link = archive(("way", tarfile.SYMTYPE, str(canary.parent)), ("way/canary", tarfile.REGTYPE, ""))
    with pytest.raises(docker.errors.APIError):
        sleeper.put_archive("/", link)  # the link's target does not exist in the container
    assert canary.read_text() == "good"
    sleeper.put_archive("/../../..", archive(("top", tarfile.REGTYPE, "")))
    assert sleeper.exec_run("cat /top").output == b"bad"
    assert not os.path.exists("/top")
    with pytest.raises(docker.errors.NotFound):
        sleeper.get_archive(f"/../../..{canary}")


def test_an_archive_that_fills_the_disk_ends_with_an_error(client: Client, server: DockerServer) -> None:
    made = client.containers.create("busybox:1", "true", storage_opt={"size": "8m"})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bomb:
        info = tarfile.TarInfo("zeros")
        info.size = 64 << 20
        bomb.addfile(info, io.BytesIO(bytes(info.size)))
    with pytest.raises(docker.errors.APIError):
        made.put_archive("/", buffer.getvalue())
    assert client.ping()


def request(path: str) -> Callable[[DockerServer, str], None]:
    def hang_up(server: DockerServer, identity: str) -> None:
        server.send(path.format(id=identity)).close()

    return hang_up


def hang_up_in_an_upload(server: DockerServer, identity: str) -> None:
    connected = server.connect()
    head = f"PUT /containers/{identity}/archive?path=/ HTTP/1.1\r\nHost: d\r\nContent-Length: 1000000\r\n\r\n"
    connected.sendall(head.encode() + archive(("part", tarfile.REGTYPE, ""))[:512])
    connected.close()


def hang_up_in_exec(server: DockerServer, identity: str) -> None:
    exec_id = server.client.api.exec_create(identity, ["sh", "-c", "echo ready; exec tail -f /dev/null"])["Id"]
    stream = server.client.api.exec_start(exec_id, socket=True)
    assert stream.read(8)
    stream._sock.close()
    stream.close()


@pytest.mark.parametrize(
    "hang_up",
    [
        lambda server, identity: server.connect().close(),
        request("POST /containers/{id}/wait"),
        request("GET /containers/{id}/logs?stdout=1&follow=1"),
        request("POST /containers/{id}/attach?stream=1&stdout=1"),
        request("GET /containers/{id}/stats"),
        request("GET /containers/{id}/archive?path=/bin"),
        request("GET /events"),
        request("POST /containers/{id}/stop?t=1"),
        hang_up_in_an_upload,
        hang_up_in_exec,
    ],
)
def test_a_client_that_hangs_up_leaves_nothing(
    server: DockerServer, sleeper: Container, hang_up: Callable[[DockerServer, str], None]
) -> None:
    descriptors = f"/proc/{server.process.pid}/fd"
    server.client.ping()
    before = len(os.listdir(descriptors))
    hang_up(server, sleeper.id)
    assert server.client.ping()
    until(lambda: server.client.containers.get(sleeper.id).status in ("running", "exited"))
    sleeper.remove(force=True)
    until(lambda: len(os.listdir(descriptors)) <= before)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /containers/json?filters=[1", 400),
        ("GET /containers/json?filters={}&all=1", 200),
        ('GET /containers/json?filters={"new":["x"]}', 400),
        ("GET /v9.9/info", 400),
        ("GET //[", 400),
        ("GET /events?until=0001-01-01T00:00:00", 400),
        ("GET http://[", 400),
        ("GET /swarm", 501),
        ("GET /nothing", 501),
        ("POST /containers/none/pause", 501),
        ("DELETE /networks/bridge", 501),
        ("DELETE /version", 405),
        ("GET /containers/none/json", 404),
        ("POST /containers/create", 400),
        ("POST /networks/create", 403),
    ],
)
def test_requests_that_are_refused_have_a_message(server: DockerServer, head: str, status: int) -> None:
    answer = answer_to(server, head.replace('"', "%22"))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    if status != 200:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["message"]


def test_unsupported_calls_say_why(client: Client, sleeper: Container) -> None:
    """The reason reaches whoever calls the SDK, and the container goes on."""
    for call, reason in (
        (sleeper.pause, "stop the container"),
        (sleeper.unpause, "stop the container"),
        (sleeper.commit, "build an image"),
        (lambda: sleeper.update(mem_limit="1g"), "when a container is created"),
        (sleeper.diff, "no list of changed files"),
        (lambda: list(sleeper.export()), "archive"),
        (lambda: client.networks.get("bridge").connect(sleeper), "--docker-network"),
        (lambda: client.images.search("busybox"), "name the image"),
        (lambda: client.swarm.init(), "swarm"),
    ):
        with pytest.raises(docker.errors.APIError, match=reason) as refused:
            call()
        assert refused.value.status_code == 501
    sleeper.reload()
    assert sleeper.status == "running"


def answer_to(server: DockerServer, head: str) -> bytes:
    connected, answer = server.connect(), b""
    connected.sendall(f"{head} HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n".encode())
    while piece := connected.recv(65536):
        answer += piece
    connected.close()
    return answer


def test_heads_and_bodies_are_bounded(server: DockerServer, client: Client) -> None:
    assert answer_to(server, f"GET /containers/{'x' * 100_000}").startswith(b"HTTP/1.1 431 ")
    connected = server.send("POST /containers/create", b"[" * (5 << 20))
    assert connected.recv(65536).startswith(b"HTTP/1.1 413 ")
    connected.close()
    connected = server.connect()
    connected.sendall(b"POST /containers/create HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\n")
    with contextlib.suppress(ConnectionError):  # it is refused before all has been read
        connected.sendall(b"1\r\n \r\n" * 20_000)
        assert connected.recv(12) == b"HTTP/1.1 400"
    connected.close()
    with pytest.raises(docker.errors.APIError, match="not JSON"):
        client.api._raise_for_status(client.api._post(client.api._url("/containers/create"), data=b"[" * 100_000))


def test_only_the_user_reaches_the_socket(server: DockerServer) -> None:
    assert os.stat(server.socket).st_mode & 0o777 == 0o600


def test_file_times_that_no_tar_header_has(client: Client, server: DockerServer) -> None:
    """Before 1970, after 2242, and not a number: each is answered with the nearest time."""
    times = {"early": -(10.0**9), "late": 13e9}
    for name, moment in times.items():
        (server.binds / name).write_text("x")
        os.utime(server.binds / name, (moment, moment))
    running = client.containers.run("busybox:1", "tail -f /dev/null", detach=True, volumes=[f"{server.binds}:/b"])
    for name, year in {"early": "1938-", "late": "2381-"}.items():
        chunks, found = running.get_archive(f"/b/{name}")
        assert found["mtime"].startswith(year)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as read:
            assert 0 <= read.getmembers()[0].mtime < 8**11
    for number, text in enumerate(("1e300", "-1e300", "inf", "nan")):
        info = tarfile.TarInfo(str(number))
        info.pax_headers = {"mtime": text}
        assert running.put_archive("/", info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
