"""`warmcell serve --docker-socket`: options that the Docker API has, and those that it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.interfaces.cli.conftest import Ended

from warmcell.interfaces.docker.engine import DockerSettings


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[DockerSettings]:
    """The settings of servers that were started. Nothing listens, and this process stays as it is."""
    for package in ("starlette", "uvicorn", "pydantic"):
        pytest.importorskip(package)
    found: list[DockerSettings] = []
    monkeypatch.setattr("warmcell.interfaces.cli.serve._use_package_copy", lambda stack: None)
    monkeypatch.setattr("warmcell.interfaces.serve.server.configure_logging", lambda level, form: None)
    monkeypatch.setattr("warmcell.interfaces.serve.server.raise_descriptor_limit", lambda: None)
    monkeypatch.setattr(
        "warmcell.interfaces.docker.server.serve", lambda settings, on_listening: found.append(settings)
    )
    return found


def test_containers_have_images_of_the_named_store(
    warmcell: Callable[..., Ended], servers: list[DockerSettings], tmp_path: Path
) -> None:
    store = str(tmp_path / "images")
    options = ("--docker-containers", "3", "--images", store, "--log-level", "error")
    assert warmcell("serve", "--docker-socket", str(tmp_path / "d.sock"), *options).status == 0
    assert [(settings.store, settings.containers) for settings in servers] == [(store, 3)]


@pytest.mark.parametrize(
    "option",
    [("--token", "x" * 16), ("--audit", "a.jsonl"), ("--state", "s"), ("--port", "9"), ("--metrics-by-tenant",)],
)
def test_options_of_the_http_server_are_refused(
    warmcell: Callable[..., Ended], servers: list[DockerSettings], option: tuple[str, ...]
) -> None:
    ended = warmcell("serve", "--docker-socket", "d.sock", *option)
    assert (ended.status, servers) == (2, [])
    assert ended.stderr.startswith(f"error: {option[0]} does not work with --docker-socket\n")


@pytest.mark.parametrize(
    ("option", "hint"), [(("--state-key", "key"), "--state DIR"), (("--plain-volumes",), "volumes need no option")]
)
def test_options_without_a_state_are_refused_with_the_remedy(
    warmcell: Callable[..., Ended],
    servers: list[DockerSettings],
    monkeypatch: pytest.MonkeyPatch,
    option: tuple[str, ...],
    hint: str,
) -> None:
    monkeypatch.delenv("WARMCELL_STATE_KEY", raising=False)
    ended = warmcell("serve", *option)
    assert ended.status == 2 and ended.stderr.startswith(f"error: {option[0]} needs --state")
    assert hint in ended.stderr.partition("\nhint: ")[2]


def test_a_directory_that_does_not_exist_is_named_with_its_option(
    warmcell: Callable[..., Ended], servers: list[DockerSettings]
) -> None:
    ended = warmcell("serve", "--docker-socket", "d.sock", "--docker-binds", "/no/such/path")
    assert (ended.status, servers) == (2, [])
    assert ended.stderr.startswith("error: --docker-binds: '/no/such/path' does not exist\n")


def test_options_of_the_docker_api_need_its_socket(warmcell: Callable[..., Ended]) -> None:
    ended = warmcell("serve", "--port", "0", "--docker-binds", "/srv")
    assert (ended.status, ended.stderr) == (2, "error: --docker-binds needs --docker-socket\n")
