"""Programs that drive Docker, unmodified: the `docker` command, testcontainers, and the calls of SWE-bench's harness."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.docker_api.conftest import DockerServer, has_docker_command
from tests.helpers import has_user_namespaces, require

docker = pytest.importorskip("docker")


@pytest.fixture(scope="module")
def lenient_server() -> Iterator[DockerServer]:
    """As for SWE-bench, which asks for a capability and grades by the order of the output."""
    require(has_user_namespaces(), "this host has no user namespaces")
    with TemporaryDirectory(prefix="wd-") as directory:
        started = DockerServer(Path(directory), "--docker-ignore-capabilities", "--docker-join-output")
        try:
            yield started
        finally:
            assert started.stop() == (0, "")


@pytest.mark.skipif(not has_docker_command(), reason="the docker command is not installed")
def test_the_docker_command(lenient_server: DockerServer, tmp_path: Path) -> None:
    def call(*words: str, text: str = "", status: int = 0) -> str:
        done = subprocess.run(
            ["docker", *words], input=text, capture_output=True, text=True, env=lenient_server.environment, timeout=90
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert call("run", "--rm", "-i", "busybox:1", "cat", text="typed\n") == "typed\n"
    assert "not found" in call("run", "--rm", "busybox:1", "no-such-program", status=127)
    assert "Privileged" in call("run", "--rm", "--privileged", "busybox:1", "id", status=125)
    call("run", "-d", "--name", "lasting", "busybox:1", "sh", "-c", "echo begun; exec tail -f /dev/null")
    (tmp_path / "note").write_text("from here")
    call("cp", str(tmp_path / "note"), "lasting:/there")
    assert call("exec", "lasting", "cat", "/there") == "from here"
    call("cp", "lasting:/there", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "from here"
    assert "lasting" in call("ps") and "busybox" in call("images")
    assert call("logs", "lasting") == "begun\n"
    call("stop", "--time=20", "lasting")
    call("rm", "--force", "lasting")


def test_testcontainers(lenient_server: DockerServer) -> None:
    pytest.importorskip("testcontainers")
    script = """
import time
from http.client import HTTPException
from urllib.request import urlopen
from testcontainers.core.container import DockerContainer
from testcontainers.core.waiting_utils import wait_for_logs
command = ["sh", "-c", "echo hello > /index.html; echo ready; exec httpd -f -p 8080 -h /"]
with DockerContainer("busybox:1").with_command(command).with_exposed_ports(8080) as container:
    wait_for_logs(container, "ready", timeout=60)
    assert container.exec(["id", "-u"]).output == b"0\\n"
    url = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(8080)}/index.html"
    for attempt in range(300):  # the program may not listen yet
        try:
            print(urlopen(url, timeout=20).read().decode().strip())
            break
        except (OSError, HTTPException) as error:
            last = error
            time.sleep(0.1)
    else:
        raise AssertionError(url) from last
"""
    environment = {**lenient_server.environment, "TESTCONTAINERS_RYUK_DISABLED": "true", "no_proxy": "*"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=90, check=False
    )
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_the_calls_of_swe_bench(lenient_server: DockerServer, tmp_path: Path) -> None:
    """`run_evaluation.py` and `docker_utils.py` of swebench 5: a container, a patch in, a script with a timeout."""
    client = lenient_server.client
    made = client.containers.create(
        image="busybox:1",
        name="sweb.eval.task-1.run",
        user="root",
        detach=True,
        command="tail -f /dev/null",
        cap_add=["SYS_ADMIN"],
    )
    made.start()
    script = "echo begun\nfor i in 1 2 3 4 5; do echo err $i >&2; echo out $i; done\necho $(cat /tmp/patch.diff)\n"
    (tmp_path / "eval.sh").write_text(script + "exec sleep 1000\n")
    (tmp_path / "patch.diff").write_text("a patch\n")
    for name, place in (("eval.sh", "/"), ("patch.diff", "/tmp")):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            archive.add(tmp_path / name, arcname=name)
        made.exec_run(f"mkdir -p {place}")
        made.put_archive(place, data.getvalue())
    assert made.exec_run("cat /tmp/patch.diff", workdir="/bin", user="root").output == b"a patch\n"
    exec_id = client.api.exec_create(made.id, "/bin/sh /eval.sh")["Id"]
    stream = client.api.exec_start(exec_id, stream=True)
    output = next(stream)
    while b"a patch" not in output:
        output += next(stream)
    pid = client.api.exec_inspect(exec_id)["Pid"]
    made.exec_run(f"kill -TERM {pid}", detach=True)
    both = "".join(f"err {i}\nout {i}\n" for i in range(1, 6))
    assert b"".join(stream) == b"" and output.decode() == f"begun\n{both}a patch\n"
    assert [one.name for one in client.containers.list(all=True)] == ["sweb.eval.task-1.run"]
    made.remove(force=True)
