"""`warmcell image`: what it prints, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.images.image_files import Layout, entry, layer
from tests.images.registry_server import run_registry

from warmcell.interfaces.cli import main
from warmcell.interfaces.cli.messages import size_text


@pytest.fixture
def layout(tmp_path: Path) -> str:
    return str(Layout([layer(entry("x", b"x" * 5000))], {"Cmd": ["sh"]}).write(tmp_path / "layout"))


class Command:
    def __init__(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._store, self._capsys = store, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        status = main(["image", *words, "--store", str(self._store)])
        said = self._capsys.readouterr()
        return status, said.out, said.err


@pytest.fixture
def image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path / "store", capsys)


def test_the_life_of_an_image(image: Command, layout: str, tmp_path: Path) -> None:
    status, out, err = image("import", layout, "app:1")
    assert status == 0 and out.startswith("app:1  sha256:") and "copying" in err and "unpacking" in err
    assert image("tag", "app:1", "app:2")[0] == 0
    status, out, _ = image("list")
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "app:1", "app:2"]
    found = json.loads(image("inspect", "app:2")[1])
    assert (found["name"], found["config"]["cmd"], len(found["layers"])) == ("app:2", ["sh"], 1)
    assert image("export", "app:1", str(tmp_path / "out.tar"), "--format", "docker")[0] == 0
    assert image("import", str(tmp_path / "out.tar"))[1].startswith("app:1  ")
    status, out, err = image("remove", "app:1", "app:2")
    assert (status, out) == (0, "") and err.endswith("freed\n")
    assert image("list")[1].count("\n") == 1
    assert image("prune")[0] == 0


def test_json(image: Command, layout: str) -> None:
    made = json.loads(image("import", layout, "app", "--json")[1])
    [listed] = json.loads(image("list", "--json")[1])
    assert listed.items() <= made.items() and made["status"] == "success"
    missing = image("inspect", "nothing", "--json")
    assert missing[0] == 2 and json.loads(missing[1])["error"]["code"] == "sandbox.image_not_found"
    assert json.loads(image("remove", "app", "--json")[1])["freed_bytes"] > 5000


def test_a_pull_with_a_password(image: Command, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    with run_registry() as server:
        server.publish(Layout([layer(entry("x"))]), "1")
        server.needs_token, server.credentials = True, ("me", "secret")
        options = ("--plain-http", "--username", "me", "--password-stdin")
        status, out, err = image("pull", f"{server.host}/team/app:1", *options)
    assert status == 0 and out.startswith(f"{server.host}/team/app:1  ") and "pulling" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("import",), "error: usage: warmcell image import PATH [NAME]"),
        (("list", "x"), "error: usage: warmcell image list\n"),
        (("inspect", "A"), "error: image: 'A' is not an image reference"),
        (("inspect", "a"), "error: no image 'a' in the store\nhint: `warmcell image pull a:latest`"),
        (("import", "/nothing/there"), "error: path: '/nothing/there' does not exist"),
        (("eat",), "error: argument action: invalid choice: 'eat'"),
    ],
)
def test_mistakes(image: Command, words: tuple[str, ...], message: str) -> None:
    status, out, err = image(*words)
    assert (status, out) == (2, "") and err.startswith(message)


def test_sizes() -> None:
    sizes = [0, 999, 1000, 1_500_000, 170_401_280, 2_340_000_000, 10**16]
    assert [size_text(size) for size in sizes] == ["0 B", "999 B", "1.0 kB", "1.5 MB", "170 MB", "2.3 GB", "10000 TB"]
