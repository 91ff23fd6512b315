from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox.fakes import Factory
from tests.sandbox.package_servers import Index, Registry, wheel

from warmcell.sandbox.blocking import Sandbox


@pytest.fixture
def factory() -> Factory:
    return Factory()


@pytest.fixture
def sandbox(factory: Factory, tmp_path: Path) -> Iterator[Sandbox]:
    """Deep in a directory of the test's own: were a way out found, it would lead to nothing that matters."""
    work = tmp_path / "1/2/3/work"
    work.mkdir(parents=True)
    with Sandbox(work, guest_factory=factory) as made:
        yield made


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    made = Index()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")  # pip keeps nothing that came by plain http otherwise
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made.files = {
        "fruit-1.0-py3-none-any.whl": wheel(
            "fruit", "1.0", "import seeds\nWORD = 'fruit ' + seeds.WORD\n", "Requires-Dist: seeds\n"
        ),
        "seeds-2.0-py3-none-any.whl": wheel("seeds", "2.0", "WORD = 'with seeds'\n"),
    }
    yield made
    made.gate.set()  # its threads wait for it
    made.shutdown()
    made.server_close()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    made = Registry()
    for name in [name for name in os.environ if name.lower().startswith("npm_config_")]:
        monkeypatch.delenv(name)
    (tmp_path / "npmrc").write_text(f"registry={made.url}\n")
    monkeypatch.setenv("npm_config_userconfig", str(tmp_path / "npmrc"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made.publish("fruit", "exports.word = 'fruit ' + require('@garden/seeds').word", {"@garden/seeds": "^1.0.0"})
    made.publish(
        "@garden/seeds",
        "exports.word = 'with seeds'",
        scripts={"preinstall": "touch /target/ran", "install": "touch /target/ran", "postinstall": "touch /target/ran"},
    )
    yield made
    made.shutdown()
    made.server_close()
