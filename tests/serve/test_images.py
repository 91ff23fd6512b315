"""Images at the doors of the server: `image` and `user` of runs, judging and sandboxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.image_roots import shared_debian_like, shared_place
from tests.serve.conftest import Server
from tests.serve.requests import create_sandbox

from warmcell import ExecRequest, ImageNotFound, InvalidRequest, Limits
from warmcell.images import ImageStore
from warmcell.interfaces.client.client import Client
from warmcell.interfaces.serve.run_places import TEMPLATE_HOST

NAME = "debian-like:1"


@pytest.fixture(scope="module")
def server(
    start_server: Callable[..., contextmanager[Server]],  # type: ignore[valid-type]
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    place = shared_place(tmp_path_factory)
    image = shared_debian_like(place)
    ImageStore(place / "store").tag(NAME, f"{TEMPLATE_HOST}/tenant/secret:1")
    with start_server("--images", str(place / "store")) as started:
        started.digest = image.digest  # type: ignore[attr-defined]
        yield started


def _run(server: Server, code: str, language: str = "command", **more: Any) -> Any:
    body = {"language": language, "code": code, "timeout": 30, "image": NAME, **more}
    return server.client.post("/v1/run", json=body)


def test_a_run_and_a_judgement_in_an_image(server: Server) -> None:
    ran = _run(server, "cat /etc/os-release; id -u").json()
    assert (ran["status"], ran["stdout"]) == ("success", 'NAME="Cell Linux"\n1000\n')
    assert _run(server, "import os; print(os.getuid())", "python", user="root").json()["stdout"] == "0\n"
    body = {"language": "command", "code": "read x; cat $x", "timeout": 30, "image": NAME}
    cases = [{"stdin": "/etc/os-release", "expected": 'NAME="Cell Linux"'}]
    assert server.client.post("/v1/judge", json={**body, "cases": cases}).json()["status"] == "accepted"


def test_a_sandbox_in_an_image(server: Server) -> None:
    at = create_sandbox(server.client, image=NAME, user="root", live=True)
    server.client.put(f"{at}/files/in", content=b"here")
    script = "cat in; id -u; echo kept > /marker"
    assert server.client.post(f"{at}/sh", json={"script": script}).json()["stdout"] == "here0\n"
    assert server.client.post(f"{at}/sh", json={"script": "cat /marker"}).json()["stdout"] == "kept\n"
    assert server.client.delete(at).status_code == 204


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"image": "not/there:1"}, 404, "sandbox.image_not_found"),
        ({"image": "sha256:" + "0" * 64}, 404, "sandbox.image_not_found"),
        ({"image": f"{TEMPLATE_HOST}/tenant/secret:1"}, 404, "sandbox.image_not_found"),
        ({"image": "../../etc"}, 422, "sandbox.invalid_request"),
        ({"image": ""}, 422, "sandbox.invalid_request"),
        ({"user": "stranger"}, 422, "sandbox.invalid_request"),
        ({"user": "9" * 100}, 422, "sandbox.invalid_request"),
        ({"image": None, "user": "root"}, 422, "sandbox.invalid_request"),
        ({"language": "rust", "code": "fn main() {}"}, 422, "sandbox.invalid_request"),
    ],
)
def test_what_a_request_cannot_name(server: Server, fields: dict[str, Any], status: int, code: str) -> None:
    """Names of the store only: no path, no other tenant's template, no user that the image does not have."""
    refused = _run(server, **{"code": "true", **fields})
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


def test_a_template_cannot_be_named_by_its_digest(server: Server, tmp_path: Path) -> None:
    """The digest of an image is accepted only if a name that is not a template's stands for it."""
    assert _run(server, "true", image=server.digest).json()["status"] == "success"  # type: ignore[attr-defined]
    store = ImageStore(_store_of(server))
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/secret").write_text("canary")
    hidden = store.import_(root, f"{TEMPLATE_HOST}/tenant/other:1")
    assert _run(server, "true", image=hidden.digest).status_code == 404
    assert _run(server, "true", image=f"any@{hidden.digest}").status_code == 404


def _store_of(server: Server) -> str:
    arguments = server.process.args
    assert isinstance(arguments, list)
    return str(arguments[arguments.index("--images") + 1])


def test_an_image_widens_nothing(server: Server) -> None:
    """Limits and the closed network are those of a run without an image, also for root."""
    asked = {"limits": {"memory_mb": 64, "disk_mb": 8}, "user": "root"}
    ran = _run(server, "exec 3<>/dev/tcp/127.0.0.1/9; dd if=/dev/zero of=/fill bs=1M count=16", **asked).json()
    assert ran["exit_code"] != 0
    assert "No space left" in ran["stderr"]
    plain = _run(server, "true", limits=asked["limits"], image=None).json()
    assert ran["enforced"] == plain["enforced"]


def test_the_client_names_an_image(server: Server) -> None:
    with Client(server.url, image=NAME, user="root") as client:
        request = ExecRequest("command", "id -u; cat /etc/os-release", 30)
        assert client.execute(request).stdout == '0\nNAME="Cell Linux"\n'
        with client.sandbox(limits=Limits(disk_mb=8)) as box:
            assert box.sh("id -u").stdout == "0\n"
        with client.sandbox(image=NAME) as box:
            assert box.sh("id -u").stdout == "1000\n"
        with pytest.raises(ImageNotFound, match="nobody"):
            client.sandbox(image="nobody:1")
    with Client(server.url, user="root") as client, pytest.raises(InvalidRequest):
        client.execute(request)
