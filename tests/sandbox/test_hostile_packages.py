"""Packages that attack their installation: no code of theirs runs, and nothing leaves the cage's own directories."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from tests.sandbox.package_servers import Index, Registry, TarEntry, sdist, wheel

from warmcell import ProvisionFailed, Sandbox
from warmcell.sandbox.local.pip_packages import copy_packages

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]

MARK = "open('/cache/ran', 'w').close()\n"
COMMAND = b"#!/bin/sh\necho package\n"


def entry(name: str, data: bytes = b"x", *, kind: bytes = tarfile.REGTYPE, to: str = "", mode: int = 0o644) -> TarEntry:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, to, mode
    return info, data if kind == tarfile.REGTYPE else b""


@pytest.mark.attack("LK-05")
def test_a_dependency_that_is_a_url_is_not_built(index: Index, tmp_path: Path) -> None:
    """pip's `--only-binary` does not apply to URLs, and the cage that downloads can write to everybody's cache."""
    index.files["evil-1.0.tar.gz"] = sdist("evil", f"{MARK}from setuptools import setup\nsetup(name='evil')\n")
    url = index.url.replace("/simple", "/files/evil-1.0.tar.gz")
    index.files["lure-1.0-py3-none-any.whl"] = wheel("lure", "1.0", "", f"Requires-Dist: evil @ {url}\n")
    with Sandbox() as sandbox, pytest.raises(ProvisionFailed, match=r"lure.*would have to be built.*only wheels"):
        sandbox.install("lure")
    assert "/files/evil-1.0.tar.gz" in index.asked
    assert list((tmp_path / "cache").rglob("ran")) == []


@pytest.mark.needs("npm")
@pytest.mark.attack("LK-05")
@pytest.mark.parametrize("source", ["git+http://127.0.0.1:{port}/x.git", "git+file:///target", "github:a/b"])
def test_a_dependency_that_is_a_repository_is_not_cloned(registry: Registry, source: str) -> None:
    registry.publish("lure", "", {"dep": source.format(port=registry.server_port)})
    with Sandbox() as sandbox, pytest.raises(ProvisionFailed, match="fetched by git"):
        sandbox.install("lure", manager="npm")
    assert not any("x.git" in path for path in registry.asked)


@pytest.mark.needs("npm")
@pytest.mark.attack("WS-10")
def test_a_tarball_leaves_its_directory_by_no_name_and_no_link(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("CANARY")
    canary = str(tmp_path / "canary")
    registry.publish(
        "lure",
        "exports.word = 'lure'",
        {"dep": f"file:{canary}", "settings": "file:../../../settings"},
        entries=[
            entry("package/link", kind=tarfile.SYMTYPE, to=canary),
            entry("package/hard", kind=tarfile.LNKTYPE, to=canary),
            entry("package/up", kind=tarfile.SYMTYPE, to="/target"),
            entry("package/up/.npmrc", b"ignore-scripts=false"),
            entry("package/../../../.npmrc", b"ignore-scripts=false"),
            entry("/target/.npmrc", b"ignore-scripts=false"),
            entry("package/pipe", kind=tarfile.FIFOTYPE),
            entry("package/setuid", mode=0o6755),
        ],
    )
    with Sandbox() as sandbox:
        try:
            sandbox.install("lure", manager="npm")
        except ProvisionFailed:
            return  # a newer npm may refuse the whole package
        found = sandbox.sh("cat $(find /node_modules/ /packages/ -type f) 2>/dev/null; ls -A /packages/.npm").stdout
        assert "CANARY" not in found and ".npmrc" not in found.splitlines()
        assert sandbox.sh("cat /node_modules/settings/npmrc /node_modules/dep").stdout == ""
        assert sandbox.sh("find /node_modules/ -perm /7000 -o -type p -o -links +1 -type f").stdout == ""


@pytest.mark.needs("npm")
def test_commands_of_packages_replace_no_interpreter_of_ours(registry: Registry) -> None:
    """They come first in PATH, as in a virtual environment, but runs and sessions use the host's programs."""
    names = ["node", "sh", "bash", "python3", "env", "../../up", "/absolute"]
    registry.publish("lure", "", bin=dict.fromkeys(names, "b.sh"), entries=[entry("package/b.sh", COMMAND)])
    registry.publish("fs", "exports.readFileSync = () => 'package'")
    with Sandbox() as sandbox:
        sandbox.install("lure", "fs", manager="npm")
        assert sandbox.sh("echo shell").stdout == "shell\n"
        assert sandbox.run("print('python')").stdout == "python\n"
        code = "console.log('node', require('fs').readFileSync('/proc/sys/kernel/ostype', 'utf8').trim())"
        assert sandbox.run(code, "javascript").stdout == "node Linux\n"
        with sandbox.session("python") as session:
            assert session.run("print('session')").stdout == "session\n"
        assert sandbox.sh("ls /node_modules /node_modules/.bin").stdout.count("up") == 1, "only in .bin"


@pytest.mark.needs("npm")
def test_deep_directories_of_a_package_do_not_stop_the_next_install(registry: Registry) -> None:
    registry.publish("deep", "", entries=[entry("package/" + "d/" * 1000 + "x")])
    with Sandbox() as sandbox:
        sandbox.install("deep", manager="npm")
        sandbox.install("fruit", manager="npm")
        assert sandbox.run("console.log(require('fruit').word)", "js").stdout == "fruit with seeds\n"


def test_copies_share_files_but_not_the_lists_that_npm_rewrites(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a").mkdir(parents=True)
    target.mkdir()
    (source / "a/index.js").write_text("1")
    (source / "package.json").write_text("{}")
    (source / "link").symlink_to("/nowhere")
    copy_packages(str(source), str(target), is_shared=True)
    assert (source / "a/index.js").samefile(target / "a/index.js")
    assert not (source / "package.json").samefile(target / "package.json")
    assert (target / "link").readlink() == Path("/nowhere")
