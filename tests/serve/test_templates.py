"""E2B's templates on the wire: builds, uploads, tags, and sandboxes made from them. The SDK itself: scripts/test-e2b."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import until
from tests.image_roots import shared_debian_like, shared_place
from tests.serve.conftest import Server, await_workers, make_token
from tests.serve.requests import Box, states_of_sleep

from warmcell.images import ImageStore

BASE = "debian-like:1"


class Tenant:
    """Requests with one token."""

    def __init__(self, server: Server, token: str, store: Path) -> None:
        self.key, self.store, self.server = token, store, server
        self.client = httpx.Client(base_url=server.url, headers={"x-api-key": token}, timeout=60, trust_env=False)

    def request(self, name: str, **more: Any) -> tuple[str, str]:
        answer = self.client.post("/v3/templates", json={"name": name, **more})
        assert answer.status_code == 202, answer.text
        return answer.json()["templateID"], answer.json()["buildID"]

    def upload(self, template: str, archive: bytes) -> str:
        digest = hashlib.sha256(archive).hexdigest()
        link = self.client.get(f"/templates/{template}/files/{digest}").json()
        assert httpx.put(link["url"], content=archive, trust_env=False, timeout=60).status_code == 200
        assert self.client.get(f"/templates/{template}/files/{digest}").json()["present"] is True
        return digest

    def start(self, template: str, build: str, *steps: dict[str, Any], **more: Any) -> httpx.Response:
        body = {"fromImage": BASE, "steps": list(steps), **more}
        return self.client.post(f"/v2/templates/{template}/builds/{build}", json=body)

    def status(self, template: str, build: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/templates/{template}/builds/{build}/status").json()
        return found

    def finish(self, template: str, build: str) -> dict[str, Any]:
        until(lambda: self.status(template, build)["status"] in ("ready", "error"))
        return self.status(template, build)

    def build(self, name: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
        template, build = self.request(name)
        assert self.start(template, build, *steps, **more).status_code == 202
        return self.finish(template, build)


@pytest.fixture(scope="module")
def tenants(start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Tenant]]:
    with start_tenants(start_server, tmp_path_factory) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of templates that were removed, no file and no image is left."""
    yield
    tenants = request.getfixturevalue("tenants") if "tenants" in request.fixturenames else []
    for tenant in tenants:
        for template in tenant.client.get("/templates").json():
            assert tenant.client.delete(f"/templates/{template['templateID']}").status_code == 204
    for tenant in tenants:
        left = [path.name for path in (tenant.store / "templates").glob("*/*") if path.name != "files"]
        assert left == []
        assert [image.name for image in ImageStore(tenant.store).list()] == [BASE]


@contextmanager
def start_tenants(start_server: Callable[..., Any], factory: pytest.TempPathFactory) -> Iterator[list[Tenant]]:
    store = make_store(factory)
    file = store.parent / "tokens.json"
    tokens = [make_token(file, name, "--templates", "4", "--disk-mb", "64") for name in ("one", "two")]
    with start_server("--tokens", str(file), "--images", str(store)) as server:
        yield [Tenant(server, token, store) for token in tokens]


def make_store(factory: pytest.TempPathFactory) -> Path:
    """A store of its own, with the base image."""
    place, own = shared_place(factory), factory.mktemp("templates")
    shared_debian_like(place)
    ImageStore(place / "store").export(BASE, own / "base")
    ImageStore(own / "store").import_(own / "base", BASE)
    return own / "store"


def step(kind: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "args": list(args), **more}


def archive(*entries: tuple[str, bytes | str], compressed: bool = True) -> bytes:
    """Text is the target of a symbolic link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz" if compressed else "w") as tar:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            info.size = len(content) if isinstance(content, bytes) else 0
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return buffer.getvalue()


def test_a_template_is_built_and_its_sandboxes_have_it(tenants: list[Tenant]) -> None:
    """All five kinds of steps, an upload with links, and the start command."""
    one = tenants[0]
    template, build = one.request("team/first:v1", tags=["also"])
    digest = one.upload(template, archive(("folder/a.txt", b"uploaded\n"), ("folder/b", "a.txt"), ("folder/c", "none")))
    steps = [
        step("ENV", "WORD", "set", "OTHER", "two words"),
        step("COPY", "folder/*", "folder", "", "0755", filesHash=digest),
        step("RUN", "cat folder/b; id -un > name; echo $OTHER"),
        step("RUN", "id -u > /root-was-here", "root"),
        step("WORKDIR", "/app"),
        step("USER", "user"),
    ]
    start = {"startCmd": "echo $WORD > /tmp/began; sleep 600", "readyCmd": "test -e /tmp/began"}
    assert one.start(template, build, *steps, **start).status_code == 202
    ended = one.finish(template, build)
    assert ended["status"] == "ready", ended
    logs = one.status(template, build)["logs"]
    assert "uploaded" in logs
    assert "two words" in logs
    assert one.client.get("/templates/aliases/team/first").json()["templateID"] == template
    for name in ("team/first:v1", "team/first:also", f"{template}:v1"):
        box = Box(one.client, one.key, templateID=name)
        script = "pwd; cat ~/folder/a.txt ~/name /root-was-here /tmp/began /etc/os-release; echo $WORD; id -un"
        said = box.run(script)
        assert said == (0, '/app\nuploaded\nuser\n0\nset\nNAME="Cell Linux"\nset\nuser\n', ""), said
        assert box.run("readlink ~/folder/c || true")[0] == 0
        entry = {"path": "new.txt", "username": "user"}
        kind = {"content-type": "application/octet-stream"}
        one.client.post("/files", params=entry, content=b"given", headers=box.headers | kind)
        assert box.run("cat ~/new.txt") == (0, "given", "")
        assert box.kill() == 204
    refused = one.client.post("/v2/sandboxes", json={"templateID": "team/first"})
    assert (refused.status_code, "tag" in refused.json()["message"]) == (400, True)


def test_a_pause_stops_the_start_command(tenants: list[Tenant]) -> None:
    one, mark = tenants[0], f"8{time.monotonic_ns() % 10**9}"
    assert one.build("paused", startCmd=f"sleep {mark}")["status"] == "ready"
    until(lambda: not states_of_sleep(mark))  # the build's has ended
    box = Box(one.client, one.key, templateID="paused")
    until(lambda: states_of_sleep(mark) == ["S"])
    assert one.client.post(f"/sandboxes/{box.id}/pause", json={}).status_code == 204
    until(lambda: states_of_sleep(mark) == ["T"])
    assert one.client.post(f"/v2/sandboxes/{box.id}/connect", json={"timeout": 300}).status_code == 201
    until(lambda: states_of_sleep(mark) == ["S"])
    assert box.kill() == 204


def test_metadata_names_an_image(tenants: list[Tenant]) -> None:
    """For clients that name images and build no templates: root in the image."""
    one = tenants[0]
    named = {"metadata": {"warmcell.image": BASE}}
    box = Box(one.client, one.key, **named)
    assert box.run("id -un; cat /etc/os-release; echo new > /outside")[:2] == (0, 'root\nNAME="Cell Linux"\n')
    kind = {"content-type": "application/octet-stream"}
    place = {"path": "/deep/new.txt", "username": "root"}
    one.client.post("/files", params=place, content=b"given", headers=box.headers | kind)
    assert box.run("cat /deep/new.txt /outside") == (0, "givennew\n", "")
    assert one.client.get(f"/sandboxes/{box.id}").json()["metadata"] == named["metadata"]
    assert box.kill() == 204
    for asked, status in (({"metadata": {"warmcell.image": "none:1"}}, 404), ({**named, "templateID": "other"}, 400)):
        assert one.client.post("/v2/sandboxes", json={"templateID": "base", **asked}).status_code == status


def test_metadata_names_an_image_with_a_user(tenants: list[Tenant], tmp_path: Path) -> None:
    one = tenants[0]
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nUSER postgres:postgres\n")
    ImageStore(one.store).build(tmp_path, name="with-user:1")
    box = Box(one.client, one.key, metadata={"warmcell.image": "with-user:1"})
    assert box.run("id -un")[:2] == (0, "postgres\n")
    for name, status in (("postgres", 200), ("root", 200), ("", 200), ("postgres:postgres", 401), ("agent", 401)):
        asked = {"path": "/etc/os-release", "username": name}
        assert one.client.get("/files", params=asked, headers=box.headers).status_code == status, name
    assert box.kill() == 204
    ImageStore(one.store).remove("with-user:1")


def test_tags_name_builds(tenants: list[Tenant]) -> None:
    one = tenants[0]
    template, first = one.request("tagged")
    one.start(template, first, step("RUN", "echo 1 > /number"))
    assert one.finish(template, first)["status"] == "ready"
    assigned = one.client.post("/templates/tags", json={"target": "tagged:default", "tags": ["stable", "tagged:old"]})
    assert (assigned.status_code, assigned.json()) == (201, {"buildID": first, "tags": ["stable", "old"]})
    for bad in (":x", "tagged:", "other:x", "a b", ""):
        refused = one.client.post("/templates/tags", json={"target": "tagged:default", "tags": [bad]})
        assert refused.status_code == 400, bad
    assert {row["tag"] for row in one.client.get("/templates/tagged/tags").json()} == {"default", "stable", "old"}
    one.client.request("DELETE", "/templates/tags", json={"name": "tagged", "tags": ["default", "old"]})
    assert [row["tag"] for row in one.client.get("/templates/tagged/tags").json()] == ["stable"]
    # A template built from another has its files, and outlives it.
    ended = one.build("derived", step("RUN", "cat /number"), fromImage=None, fromTemplate="tagged:stable")
    assert (ended["status"], ended["logs"][-1]) == ("ready", "1")
    assert one.client.delete("/templates/tagged").status_code == 204
    assert one.client.get("/templates/aliases/tagged").status_code == 404
    box = Box(one.client, one.key, templateID="derived")
    assert box.run("cat /number") == (0, "1\n", "")
    box.kill()
    assert one.client.delete("/templates/derived").status_code == 204


def test_another_tenants_template_is_not_there(tenants: list[Tenant]) -> None:
    one, two = tenants
    template, build = one.request("private")
    one.start(template, build)
    assert one.finish(template, build)["status"] == "ready"
    for name in ("private", template, "private:default"):
        assert two.client.get(f"/templates/aliases/{name}").status_code == 404
        assert two.client.get(f"/templates/{name}").status_code == 404
        assert two.client.get(f"/templates/{name}/tags").status_code == 404
        assert two.client.delete(f"/templates/{name}").status_code == 404
        assert two.client.get(f"/templates/{name}/files/{'0' * 64}").status_code == 404
        assert two.client.get(f"/templates/{name}/builds/{build}/status").status_code == 404
        assert two.start(name, build).status_code == 404
        assert two.client.post("/v2/sandboxes", json={"templateID": name}).status_code == 404
    assert two.client.get("/v2/templates").json() == []
    assert two.build("mine", fromImage=None, fromTemplate="private")["reason"]["step"] == "base"
    hidden = next(image for image in ImageStore(one.store).list() if build in image.name)
    for name in (hidden.name, hidden.digest):
        assert "no image" in two.build("mine", fromImage=name)["reason"]["message"]
        body = {"language": "command", "code": "true", "timeout": 9, "image": name}
        assert two.client.post("/v1/run", json=body).status_code == 404


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [step("RUN", "echo said; exit 3")],
            "failed to run command 'echo said; exit 3': command failed: exit status 3",
        ),
        ([step("RUN", "whoami", "root123")], "command failed: unauthenticated: invalid username: 'root123'"),
        ([step("USER", "stranger")], "invalid username: 'stranger'"),
        ([step("COPY", "a", "b", filesHash="f" * 64)], "no files were uploaded"),
        ([step("COPY", "a", "b", filesHash="../../../key")], "hash"),
        ([step("COPY", "a", "b", "", "9x", filesHash="f" * 64)], "is not a mode"),
        ([step("MOUNT", "/", "/host")], "unsupported step"),
        ([step("ENV", "odd")], "unsupported step"),
    ],
)
def test_a_step_that_fails_is_named(tenants: list[Tenant], steps: list[dict[str, Any]], message: str) -> None:
    ended = tenants[1].build("failing", step("WORKDIR", "/x"), *steps)
    assert (ended["status"], ended["reason"]["step"]) == ("error", "2")
    assert message in ended["reason"]["message"]
    assert tenants[1].client.post("/v2/sandboxes", json={"templateID": "failing"}).status_code == 400


def test_hostile_archives(tenants: list[Tenant], tmp_path: Path) -> None:
    """No entry leads out of the archive's own directory, whatever its names and links say."""
    one, canary = tenants[0], tmp_path / "canary"
    canary.write_text("content of the host")
    escapes = [
        archive(("../out", b"x"), ("in", b"x")),
        archive(("link", str(tmp_path)), ("link/canary", b"overwritten")),
        archive(("in", str(canary))),
        archive(("in", "../" * 40 + str(canary).lstrip("/"))),
        gzip.compress(b"\0" * (100 << 20)),
        b"not an archive",
        archive(("in", b"x" * 4096))[:-300],
    ]
    template, _ = one.request("hostile")
    for data in escapes:
        digest = one.upload(template, data)
        ended = one.build("hostile", step("COPY", "in", "/in", filesHash=digest), step("RUN", "cat /in"))
        assert ended["status"] == "error", ended
        assert "content of the host" not in "".join(ended["logs"])
    assert canary.read_text() == "content of the host"
    assert not (tmp_path / "out").exists()


def test_uploads_need_their_signature(tenants: list[Tenant]) -> None:
    one, digest = tenants[0], "a" * 64
    template, _ = one.request("uploads")
    link = one.client.get(f"/templates/{template}/files/{digest}").json()["url"]
    for forged in (
        link.replace(digest, "b" * 64),
        link.replace("most=", "most=9"),
        link.replace("signature=", "signature=0"),
        link.partition("?")[0],
        link.replace("expires=", "expires=9"),
    ):
        assert httpx.put(forged, content=b"x", trust_env=False, timeout=60).status_code in (400, 403), forged
    assert one.client.get(f"/templates/{template}/files/..%2f..%2fkey").status_code in (400, 404)
    too_large = httpx.put(link, content=iter([b"x" * (1 << 20)] * 65), trust_env=False, timeout=60)
    assert too_large.status_code == 413
    url = httpx.URL(link)
    with socket.create_connection((url.host, url.port)) as client:
        client.sendall(
            f"PUT {url.raw_path.decode()} HTTP/1.1\r\nhost: {url.netloc.decode()}\r\ncontent-length: 1000\r\n\r\nhalf".encode()
        )
        until(lambda: list((one.store / "templates").glob("*/files/*.part")))
    until(lambda: not list((one.store / "templates").glob("*/files/*.part")))


def test_builds_are_bounded_and_end_with_their_template(tenants: list[Tenant]) -> None:
    one = tenants[0]
    template, build = one.request("endless")
    mark = f"6{time.monotonic_ns() % 10**8}"
    assert one.start(template, build, step("RUN", "x" * (1 << 20))).status_code == 413
    assert one.start(template, build, step("RUN", f"sleep {mark}")).status_code == 202
    assert one.start(template, build).status_code == 409
    until(lambda: states_of_sleep(mark))
    assert one.status(template, build)["status"] == "building"
    assert one.client.post("/v2/sandboxes", json={"templateID": "endless"}).status_code == 400
    made = [one.client.post("/v3/templates", json={"name": name}).status_code for name in ("a", "b", "c", "d")]
    assert made == [202, 202, 202, 429]
    assert one.client.delete("/templates/endless").status_code == 204
    until(lambda: not states_of_sleep(mark))
    assert one.client.get(f"/templates/endless/builds/{build}/status").status_code == 404
    for name in ("", "a b", "../x", "x" * 200, "base", "a:b:c", "a:"):
        assert one.client.post("/v3/templates", json={"name": name}).status_code in (400, 403), name


def test_a_build_of_a_server_that_ended_has_failed(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A killed server leaves no process, and the next one tells its clients."""
    mark = f"7{time.monotonic_ns() % 10**8}"
    with start_tenants(start_server, tmp_path_factory) as (one, _):
        template, build = one.request("interrupted")
        one.start(template, build, step("RUN", f"sleep {mark}"))
        until(lambda: states_of_sleep(mark))
        one.server.process.kill()
        one.server.process.wait(30)
        until(lambda: not states_of_sleep(mark))
        tokens = one.store.parent / "tokens.json"
        with start_server("--tokens", str(tokens), "--images", str(one.store)) as again:
            ended = Tenant(again, one.key, one.store).status(template, build)
    assert (ended["status"], ended["reason"]["message"]) == ("error", "the server ended during the build")


def test_a_template_that_one_worker_built_is_used_by_the_others(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without a token file, sandboxes are spread over the workers. Builds are carried out by one of them."""
    store = make_store(tmp_path_factory)
    with start_server("--workers", "2", "--images", str(store)) as server:
        await_workers(server)
        one = Tenant(server, "any", store)
        assert one.build("shared", step("RUN", "echo 1 > /number", "root"))["status"] == "ready"
        boxes = [Box(one.client, one.key, templateID="shared") for _ in range(2)]
        assert {box.id[-2:] for box in boxes} == {"00", "01"}
        assert [box.run("cat /number") for box in boxes] == [(0, "1\n", "")] * 2
        assert one.build("shared", step("RUN", "echo 2 > /number", "root"))["status"] == "ready"
        boxes += [Box(one.client, one.key, templateID="shared") for _ in range(2)]
        assert [box.run("cat /number")[1] for box in boxes] == ["1\n", "1\n", "2\n", "2\n"]
        assert [template["names"] for template in one.client.get("/templates").json()] == [["shared"]]
        assert one.client.delete("/templates/shared").status_code == 204
        assert one.client.post("/v2/sandboxes", json={"templateID": "shared"}).status_code == 404
        assert [box.run("cat /number")[1] for box in boxes] == ["1\n", "1\n", "2\n", "2\n"]
        assert [box.kill() for box in boxes] == [204] * 4


def test_sandboxes_of_templates_survive_a_restart(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With `--state`: their home, their image and its start command. A template that was removed takes them with it."""
    store = make_store(tmp_path_factory)
    options = ("--images", str(store), "--state", str(store.parent / "state"))
    with start_server(*options) as server:
        one = Tenant(server, "any", store)
        start = "echo $N; cat /home/user/file > /tmp/began; sleep 600"
        assert one.build("kept", step("ENV", "N", "1"), startCmd=start)["status"] == "ready"
        for name in ("moved", "gone"):
            assert one.build(name, step("ENV", "N", "1"))["status"] == "ready"
        kept, paused, moved, gone = (Box(one.client, templateID=name) for name in ("kept", "kept", "moved", "gone"))
        named = Box(one.client, metadata={"warmcell.image": BASE})
        assert named.run("cp /etc/os-release file") == (0, "", "")
        for box in (kept, paused, moved):
            assert box.run("echo $N > file; cp file /outside; cat file")[1] == "1\n"
        assert one.client.post(f"/sandboxes/{paused.id}/pause", json={}).status_code == 204
        assert one.build("moved", step("ENV", "N", "2"))["status"] == "ready"
        assert one.client.delete("/templates/gone").status_code == 204
        assert server.stop()[0] == 0
    with start_server(*options) as server:
        for box in (kept, paused, moved, named):
            box.client = server.client
        assert named.run("cat file; id -un")[1] == 'NAME="Cell Linux"\nroot\n'
        assert server.client.post(f"/sandboxes/{paused.id}/connect", json={"timeout": 300}).status_code == 201
        for box, number in ((kept, "1"), (paused, "1"), (moved, "2")):
            assert box.run("cat file; echo $N; ls /outside")[:2] == (2, f"1\n{number}\n")
        for box in (kept, paused):
            until(lambda box=box: box.run("cat /tmp/began")[1] == "1\n")
        assert server.client.get(f"/sandboxes/{gone.id}").status_code == 404
        assert [box.kill() for box in (kept, paused, moved, named)] == [204] * 4
        log = server.stop()[1]
    assert f"restored sandbox {kept.id}; lost: nothing; files outside of /home/user" in log
    assert f"cannot restore sandbox {gone.id}: its template 'gone' was removed" in log
