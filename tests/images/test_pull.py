"""Pulling from a registry on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE
from tests.images.image_files import ARCHITECTURE, INDEX, MANIFEST, Layout, digest_of, entry, layer
from tests.images.registry_server import TOKEN, RegistryServer, basic, run_registry

from warmcell.errors import FetchFailed, ImageInvalid, ImageNotFound, InvalidRequest
from warmcell.images import ImageLimits, ImageStore, registry
from warmcell.images.limits import MAX_JSON_BYTES
from warmcell.images.progress import ImageProgress

LAYERS = [layer(entry("base", b"b" * 5000)), layer(entry("top", os.urandom(30_000)))]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with run_registry() as running:
        yield running


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(registry, "SLICE", 10_000)


def assert_nothing_is_left(store: ImageStore) -> None:
    assert store.list() == []
    store.prune()
    assert not any(
        os.listdir(f"{store.path}/{name}") for name in ("blobs", "layers") if os.path.isdir(f"{store.path}/{name}")
    )


def test_an_image_by_tag_and_by_digest(store: ImageStore, server: RegistryServer) -> None:
    digest = server.publish(Layout(LAYERS, {"Cmd": ["sh"]}, compress=True), "1")
    seen: list[ImageProgress] = []
    image = store.pull(f"{server.host}/team/app:1", plain_http=True, on_progress=seen.append)
    assert (image.name, image.digest, image.config.cmd) == (f"{server.host}/team/app:1", digest, ("sh",))
    assert Path(image.layer_paths[0], "base").read_bytes() == b"b" * 5000
    assert {progress.step for progress in seen} == {"pull", "unpack"}
    assert all(progress.done <= progress.total for progress in seen)
    before = len(server.requests)
    by_digest = store.pull(f"{server.host}/team/app@{digest}", plain_http=True)
    assert by_digest.layer_paths == image.layer_paths
    assert len(server.requests) == before + 1  # the manifest: everything else is in the store


def test_a_killed_pull_leaves_nothing_that_is_seen_or_stays(store: ImageStore, server: RegistryServer) -> None:
    server.publish(Layout(LAYERS), "1")
    is_asked, may_answer = threading.Event(), threading.Event()

    def stall(body: bytes) -> bytes:
        if body == LAYERS[1]:
            is_asked.set()
            may_answer.wait(PATIENCE)
        return body

    server.change = stall
    pull = f"pull('{server.host}/team/app:1', plain_http=True)"
    code = f"from warmcell.images import ImageStore; ImageStore({store.path!r}).{pull}"
    with subprocess.Popen([sys.executable, "-c", code]) as pulling:
        try:
            assert is_asked.wait(PATIENCE)
        finally:
            pulling.kill()
    may_answer.set()
    assert store.list() == []
    image = store.pull(f"{server.host}/team/app:1", plain_http=True)
    assert Path(image.layer_paths[1], "top").stat().st_size == 30_000
    store.remove(image.name)
    assert_nothing_is_left(store)


def test_large_blobs_come_in_slices(store: ImageStore, server: RegistryServer) -> None:
    server.publish(Layout(LAYERS), "1")
    store.pull(f"{server.host}/team/app:1", plain_http=True)
    assert len([asked for path, _, asked in server.requests if digest_of(LAYERS[1]) in path]) == -(
        -len(LAYERS[1]) // 10_000
    )
    server.ignores_ranges = True
    other = ImageStore(Path(store.path).parent / "other")
    assert other.pull(f"{server.host}/team/app:1", plain_http=True).digest == store.list()[0].digest


@pytest.mark.parametrize("has_basic", [False, True])
def test_credentials(store: ImageStore, server: RegistryServer, has_basic: bool) -> None:
    server.publish(Layout(LAYERS), "1")
    server.needs_token, server.has_basic, server.credentials = not has_basic, has_basic, ("me", "secret")
    for wrong in ({}, {"username": "me", "password": "wrong"}):
        with pytest.raises(FetchFailed) as caught:
            store.pull(f"{server.host}/team/app:1", plain_http=True, **wrong)
        assert caught.value.fault == "caller" and "wrong" not in str(caught.value)
    assert_nothing_is_left(store)
    store.pull(f"{server.host}/team/app:1", username="me", password="secret", plain_http=True)
    last = server.requests[-1][1]
    assert last == (basic(("me", "secret")) if has_basic else f"Bearer {TOKEN}")


def test_a_token_without_credentials(store: ImageStore, server: RegistryServer) -> None:
    server.publish(Layout(LAYERS), "1")
    server.needs_token = True
    store.pull(f"{server.host}/team/app:1", plain_http=True)
    assert len([path for path in server.paths() if path.startswith("/token")]) == 1


@pytest.mark.claim("WC-IM-5")
def test_the_password_goes_to_no_other_domain(store: ImageStore, server: RegistryServer) -> None:
    realm = 'Bearer realm="https://attacker.example.com/token"'
    server.answers["/v2/team/app/manifests/1"] = (401, {"WWW-Authenticate": realm}, b"")
    with pytest.raises(FetchFailed, match="another domain"):
        store.pull(f"{server.host}/team/app:1", username="me", password="secret", plain_http=True)


@pytest.mark.claim("WC-IM-5")
def test_a_redirect_to_another_server_of_this_machine_is_refused(store: ImageStore, server: RegistryServer) -> None:
    """A registry must not make us read what only this machine can reach."""
    with run_registry() as inner:
        server.answers["/v2/team/app/manifests/1"] = (307, {"Location": f"http://{inner.host}/secret"}, b"")
        with pytest.raises(FetchFailed) as caught:
            store.pull(f"{server.host}/team/app:1", plain_http=True)
        assert caught.value.reason == "refused" and inner.requests == []
        server.answers["/v2/team/app/manifests/1"] = (
            401,
            {"WWW-Authenticate": f'Bearer realm="http://{inner.host}/t"'},
            b"",
        )
        with pytest.raises(FetchFailed, match="does not use https"):
            store.pull(f"{server.host}/team/app:1", plain_http=True)
        assert inner.requests == []


@pytest.mark.parametrize(
    ("status", "headers"),
    [(302, {"Location": "http://[::1"}), (401, {"WWW-Authenticate": 'Bearer realm="http://[::1"'})],
)
def test_a_malformed_url_of_a_registry_is_refused(
    store: ImageStore, server: RegistryServer, status: int, headers: dict[str, str]
) -> None:
    server.answers["/v2/team/app/manifests/1"] = (status, headers, b"")
    with pytest.raises(FetchFailed, match="malformed URL"):
        store.pull(f"{server.host}/team/app:1", plain_http=True)


def test_redirects_within_the_registry(store: ImageStore, server: RegistryServer) -> None:
    layout = Layout(LAYERS)
    server.publish(layout, "1")
    moved = digest_of(LAYERS[0])
    server.answers[f"/v2/team/app/blobs/{moved}"] = (302, {"Location": "/elsewhere"}, b"")
    server.answers["/elsewhere"] = (200, {}, LAYERS[0])
    store.pull(f"{server.host}/team/app:1", plain_http=True)
    server.answers["/v2/team/app/manifests/2"] = (302, {"Location": "/v2/team/app/manifests/2"}, b"")
    with pytest.raises(FetchFailed, match="redirects"):
        store.pull(f"{server.host}/team/app:2", plain_http=True)


def test_an_index_chooses_this_machine(store: ImageStore, server: RegistryServer) -> None:
    layout = Layout(LAYERS)
    digest = server.publish(layout, "own")
    own = {
        "mediaType": MANIFEST,
        "digest": digest,
        "size": 1,
        "platform": {"os": "linux", "architecture": ARCHITECTURE},
    }
    other = own | {"digest": digest_of(b"other"), "platform": {"os": "linux", "architecture": "s390x"}}
    attestation = own | {"digest": digest_of(b"x"), "platform": {"os": "unknown", "architecture": "unknown"}}
    server.publish_json(
        layout, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [other, attestation, own]}, INDEX, "all"
    )
    server.publish_json(layout, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [other]}, INDEX, "s390x")
    assert store.pull(f"{server.host}/team/app:all", plain_http=True).digest == digest
    with pytest.raises(ImageInvalid, match="s390x"):
        store.pull(f"{server.host}/team/app:s390x", plain_http=True)


@pytest.mark.claim("WC-IM-5")
def test_a_registry_that_lies(store: ImageStore, server: RegistryServer) -> None:
    digest = server.publish(Layout(LAYERS), "1")
    for change in (lambda body: body + b" ", lambda body: body[:-1], lambda body: b""):
        server.change = change
        for name in (":1", f"@{digest}"):
            with pytest.raises(ImageInvalid):
                store.pull(f"{server.host}/team/app{name}", plain_http=True)
    server.change = lambda body: body if body.startswith(b"{") else bytes(len(body))
    with pytest.raises(ImageInvalid, match="digest"):
        store.pull(f"{server.host}/team/app:1", plain_http=True)
    assert_nothing_is_left(store)


def test_wrong_documents(store: ImageStore, server: RegistryServer) -> None:
    for body in (b"", b"[]", b"{}", b"[" * 100_000, b"\xff", b'{"mediaType": "text/html"}', b'{"mediaType": 1}'):
        server.manifests["1"] = ("text/html", body)
        with pytest.raises(ImageInvalid):
            store.pull(f"{server.host}/team/app:1", plain_http=True)
    assert_nothing_is_left(store)


@pytest.mark.claim("WC-IM-5")
@pytest.mark.parametrize(
    ("host", "token_server", "is_same"),
    [
        ("registry-1.docker.io", "auth.docker.io", True),
        ("registry.gitlab.com", "gitlab.com", True),
        ("registry.team.co.uk", "auth.team.co.uk", True),
        ("registry.team.co.uk", "attacker.co.uk", False),
        ("registry.team.co.uk", "auth.attacker.co.uk", False),
        ("registry.team.com.au", "attacker.com.au", False),
        ("registry.team.de", "auth.team.de", True),
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "198.51.2.1", False),
    ],
)
def test_which_token_servers_get_the_password(host: str, token_server: str, is_same: bool) -> None:
    assert (registry._domain(f"https://{host}") == registry._domain(f"https://{token_server}/token?x=1")) is is_same


@pytest.mark.parametrize("path", ["manifests/1", "token"])
def test_documents_are_bounded_while_they_arrive(store: ImageStore, server: RegistryServer, path: str) -> None:
    server.publish(Layout(LAYERS), "1")
    server.needs_token = True
    place = "/token" if path == "token" else f"/v2/team/app/{path}"
    server.answers[place] = (200, {"Content-Type": "application/json"}, b" " * (MAX_JSON_BYTES + 1))
    with pytest.raises(FetchFailed, match=f"larger than {MAX_JSON_BYTES} bytes"):
        store.pull(f"{server.host}/team/app:1", plain_http=True)
    assert_nothing_is_left(store)


@pytest.mark.claim("WC-IM-5")
def test_a_registry_that_sends_one_byte_at_a_time(store: ImageStore, server: RegistryServer) -> None:
    server.publish(Layout(LAYERS), "1")
    server.answers[f"/v2/team/app/blobs/{digest_of(LAYERS[1])}"] = (206, {}, LAYERS[1][:1])
    with pytest.raises(ImageInvalid, match="sent 1 bytes"):
        store.pull(f"{server.host}/team/app:1", plain_http=True)
    assert_nothing_is_left(store)


def test_limits_hold_before_anything_is_fetched(tmp_path: Path, server: RegistryServer) -> None:
    server.publish(Layout(LAYERS), "1")
    store = ImageStore(tmp_path / "store", limits=ImageLimits(unpacked_bytes=20_000))
    with pytest.raises(ImageInvalid, match="20000 bytes"):
        store.pull(f"{server.host}/team/app:1", plain_http=True)
    assert not any(digest_of(LAYERS[1]) in path for path in server.paths())


def test_a_pull_that_nobody_waits_for_ends_although_the_registry_is_silent(
    store: ImageStore, server: RegistryServer
) -> None:
    server.publish(Layout(LAYERS), "1")
    is_asked, may_answer = threading.Event(), threading.Event()

    def stall(body: bytes) -> bytes:
        is_asked.set()
        may_answer.wait(PATIENCE)
        return body

    def check() -> None:
        if is_asked.is_set():
            raise InterruptedError

    server.change = stall
    try:
        with pytest.raises(InterruptedError):
            store.pull(f"{server.host}/team/app:1", plain_http=True, check=check)
    finally:
        may_answer.set()
    assert_nothing_is_left(store)


def test_failures_are_retried_and_missing_images_are_not(store: ImageStore, server: RegistryServer) -> None:
    server.publish(Layout(LAYERS), "1")
    server.failures = 2
    store.pull(f"{server.host}/team/app:1", plain_http=True)
    before = len(server.requests)
    with pytest.raises(ImageNotFound, match="in the registry"):
        store.pull(f"{server.host}/team/app:2", plain_http=True)
    assert len(server.requests) == before + 1
    server.failures = 100
    with pytest.raises(FetchFailed, match="503"):
        store.pull(f"{server.host}/team/app:1", plain_http=True)


def test_a_mirror_comes_first_and_the_registry_after_it(tmp_path: Path, server: RegistryServer) -> None:
    digest = server.publish(Layout(LAYERS), "1")
    with run_registry() as mirror:
        store = ImageStore(tmp_path / "store", mirrors={server.host: [f"http://{mirror.host}"]})
        assert store.pull(f"{server.host}/team/app:1", plain_http=True).digest == digest
        assert len(mirror.requests) == 1 and len(server.requests) > 1
        mirror.publish(Layout(LAYERS), "1")
        server.requests.clear()
        assert store.pull(f"{server.host}/team/app:1", plain_http=True).digest == digest
        assert server.requests == []


def test_plain_http_is_for_this_machine(store: ImageStore) -> None:
    with pytest.raises(InvalidRequest, match="plain_http"):
        store.pull("registry.example.com/team/app:1", plain_http=True)
