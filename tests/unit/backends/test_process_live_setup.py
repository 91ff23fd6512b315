"""What sibling sandboxes share of their live cages: toolchains and plans, for a short time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from warmcell import MountPoint, Sandbox
from warmcell.backends.process import live_start
from warmcell.backends.process.live_setup import LiveSetup
from warmcell.languages.host_tools import HostTools

SEEN = "import os; print(sorted(os.listdir('/work')), open('/work/name').read())"


def test_toolchains_are_looked_for_again_after_a_while_and_if_one_is_gone(tmp_path: Path) -> None:
    now = [100.0]
    setup = LiveSetup(lambda: now[0])
    first, second, third = (HostTools((str(tmp_path),), (name,)) for name in ("1", "2", "3"))
    assert setup.tools(lambda: first) is first
    assert setup.tools(lambda: second) is first
    now[0] += 10.0
    assert setup.tools(lambda: second) is second
    assert setup.tools(lambda: third) is second
    tmp_path.rmdir()
    assert setup.tools(lambda: third) is third


@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
def test_a_fork_does_without_a_toolchain_that_was_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("warmcell.backends.process.live_setup._KEPT_SECONDS", 1e9)
    node = tmp_path / "node"
    (node / "bin").mkdir(parents=True)
    (node / "bin/node").write_text("#!/bin/sh\necho v22.18.0\n")
    (node / "bin/node").chmod(0o755)
    (node / "include/node").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{node}/bin", prepend=":")
    with Sandbox(live=True) as sandbox:
        with sandbox.fork() as fork:
            assert fork.run("print(1)").stdout == "1\n"
        shutil.rmtree(node)
        with sandbox.fork() as fork:
            assert fork.run("print(2)").stdout == "2\n"


@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
def test_forks_share_a_plan_and_each_has_its_own_work_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled, compile_live = [], live_start.LiveTemplate._compile

    def note(template: live_start.LiveTemplate) -> object:
        compiled.append(template)
        return compile_live(template)

    monkeypatch.setattr(live_start.LiveTemplate, "_compile", note)
    # The plan is kept for some seconds only, and a starved host may take longer.
    monkeypatch.setattr("warmcell.backends.process.live_setup._KEPT_SECONDS", 1e9)
    with Sandbox(live=True, mounts=[MountPoint(tmp_path, "/shared")]) as sandbox:
        sandbox.write_file("name", b"original")
        (tmp_path / "seen").write_text("shared")
        with sandbox.fork() as one, sandbox.fork() as other:
            one.write_file("name", b"one")
            other.write_file("name", b"other")
            for each, name in ((sandbox, "original"), (one, "one"), (other, "other")):
                assert each.run(SEEN).stdout == f"['name'] {name}\n"
                assert each.run("print(open('/shared/seen').read())").stdout == "shared\n"
    assert len(compiled) == 1
