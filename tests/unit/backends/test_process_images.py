"""What of an image applies to a run, decided from outside: files in its layers, users, programs, the default command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from warmcell import FetchPolicy, InvalidRequest, NetworkRule, ProcessBackend, SandboxPolicy
from warmcell.backends.process.image import OpenImage
from warmcell.core.errors import BackendUnavailable, PolicyViolation
from warmcell.core.records import replace
from warmcell.core.types import Language
from warmcell.images import ImageStore, image_files
from warmcell.images.image_files import ImageFiles, find_user, topmost
from warmcell.images.model import ImageConfig

_PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:50::/srv/app:/bin/sh\ndb:x:101:103::/var/db:/bin/sh\n"


def _layer(directory: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            path.symlink_to(content[3:])
        else:
            path.write_text(content)
            path.chmod(0o755)
    return str(directory)


@pytest.fixture
def layers(tmp_path: Path) -> list[str]:
    lower = {"usr/bin/python3": "3", "usr/lib/a": "lower", "opt/old/x": "x", "bin": "-> usr/bin", "etc/passwd": _PASSWD}
    upper = {"usr/lib/a": "upper", "usr/bin/py": "-> python3", "loop": "-> /loop", "out": "-> ../../../etc/passwd"}
    opaque = _layer(tmp_path / "upper", {**upper, "opt/new": "new", "etc/group": "db:x:103:\n"})
    os.setxattr(f"{opaque}/opt", "user.overlay.opaque", b"y")
    return [_layer(tmp_path / "lower", lower), opaque]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/usr/lib/a", "upper/usr/lib/a"),
        ("/bin/python3", "lower/usr/bin/python3"),
        ("/bin/py", "lower/usr/bin/python3"),
        ("/usr/bin/../lib/a", "upper/usr/lib/a"),
        ("/opt/new", "upper/opt/new"),
        ("/opt/old/x", None),
        ("/usr/lib/a/b", None),
        ("/loop", None),
        ("/out", "lower/etc/passwd"),
        ("/missing", None),
    ],
)
def test_a_path_leads_where_the_overlay_would(layers: list[str], tmp_path: Path, path: str, found: str | None) -> None:
    assert ImageFiles(layers).find(path) == (None if found is None else str(tmp_path / found))


@pytest.mark.attack("S2-35")
def test_a_search_ends_whatever_the_image_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its PATH may have a megabyte, and each directory of it was looked for in each layer."""
    layers = [_layer(tmp_path / str(number), {"bin/sh": "sh"}) for number in range(20)]
    looks = []

    def count(places: Sequence[str], name: str) -> list[str]:
        looks.append(len(places))
        return topmost(places, name)

    monkeypatch.setattr(image_files, "topmost", count)
    files, many = ImageFiles(layers), ":".join(f"/bin/{number}" for number in range(5000))
    assert files.find_program(("sh",), f"/bin:{many}") == "/bin/sh"
    assert files.find_program(("sh",), f"{many}:/bin") is None
    assert sum(looks) < 50_000
    assert files.locate("/" + "bin/../" * 10 + "bin/sh")[1] and not files.locate("/" + "x/" * 500_000)[1]


def test_an_image_is_searched_once(layers: list[str], tmp_path: Path) -> None:
    """It never changes, and event loops ask at each session."""
    opened = OpenImage(ImageStore(tmp_path / "store").import_(layers[0], "some:1"), None)
    assert opened.session_languages == ("python",)
    opened._files = None  # type: ignore[assignment]
    assert opened.session_languages == ("python",) and opened.find_program_of(Language.PYTHON) == "/usr/bin/python3"
    opened.close()


@pytest.mark.parametrize(
    ("user", "uid", "gid", "home"),
    [
        ("", 1000, 1000, "/srv/app"),
        ("root", 0, 0, "/root"),
        ("app", 1000, 50, "/srv/app"),
        ("101", 101, 103, "/var/db"),
        ("7", 7, 0, ""),
        ("7:8", 7, 8, ""),
        ("app:db", 1000, 103, "/srv/app"),
    ],
)
def test_users(layers: list[str], user: str, uid: int, gid: int, home: str) -> None:
    found = find_user(ImageFiles(layers), user)
    assert (found.uid, found.gid, found.home) == (uid, gid, home)


@pytest.mark.parametrize("user", ["stranger", "app:stranger", "-1", "4294967295", "99999999999", "1.5", "٣"])
def test_unknown_users_are_refused(layers: list[str], user: str) -> None:
    with pytest.raises(InvalidRequest, match="the image has no"):
        find_user(ImageFiles(layers), user)


def test_root_exists_in_every_image() -> None:
    found = find_user(ImageFiles([]), "root")
    assert (found.uid, found.gid, found.home) == (0, 0, "")


def test_the_configuration_of_an_image(layers: list[str], tmp_path: Path) -> None:
    stored = ImageStore(tmp_path / "store").import_(layers[0], "some:1")
    config = ImageConfig({"A": "1"}, "/srv/missing", "db", ("/entry", "-x"), ("cmd",))
    opened = OpenImage(replace(stored, config=config), None)
    root = opened.root
    assert (root.uid, root.gid, root.work_dir, root.missing) == (101, 103, "/srv/missing", ("/srv/missing", "/var/db"))
    assert root.env["A"] == "1" and root.env["HOME"] == "/var/db" and root.env["PATH"].startswith("/usr/local/sbin:")
    assert opened.default_command() == ("/entry", "-x", "cmd")
    assert opened.default_command(("other",)) == ("/entry", "-x", "other")
    assert [str(language) for language in opened.languages] == ["python"]
    assert opened.prepare("python", "1").argv[0] == "/usr/bin/python3"
    with pytest.raises(BackendUnavailable, match="has no sh"):
        opened.prepare("command", "1")
    with pytest.raises(InvalidRequest, match="do not run in an image"):
        opened.prepare("rust", "1")
    opened.close()
    without = OpenImage(stored, "root")
    with pytest.raises(InvalidRequest, match="neither ENTRYPOINT nor CMD"):
        without.default_command()
    without.close()


def test_a_backend_that_cannot_be_made_keeps_no_image(layers: list[str], tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    image = store.import_(layers[0], "some:1")
    policy = SandboxPolicy(network_rules=(NetworkRule("a.example"),))
    with pytest.raises(PolicyViolation, match="both the policy and the fetch policy"):
        ProcessBackend(policy=policy, fetch_policy=FetchPolicy(["b.example"]), image=image)
    store.remove("some:1")
    assert not os.path.exists(image.layer_paths[0])
