"""An agent's first commit works as it is, in every kind of sandbox, and under the same name."""

from __future__ import annotations

import shutil

import pytest

from warmcell import Sandbox

COMMIT = "git init -q . && echo text > file && git add file && git commit -q -m first && git log --format='%an <%ae>'"


@pytest.mark.parametrize("backend", ["process", "wasm"])
def test_a_first_commit_needs_no_identity(backend: str) -> None:
    if backend == "process" and shutil.which("git") is None:
        pytest.skip("git is not installed here")
    with Sandbox(backend=backend, timeout=300) as sandbox:
        committed = sandbox.sh(COMMIT)
        assert (committed.stdout, committed.stderr) == ("sandbox <sandbox@localhost>\n", "")
        named = sandbox.sh(
            "git config user.name Ada && git config user.email ada@example.com && git commit -q --amend --reset-author -C HEAD; git log --format='%an <%ae>'"
        )
        assert named.stdout == "Ada <ada@example.com>\n"


@pytest.mark.parametrize("backend", ["process", "wasm"])
def test_the_user_has_one_name(backend: str) -> None:
    with Sandbox(backend=backend, timeout=300) as sandbox:
        assert sandbox.sh("whoami; id -u; id -gn").stdout.split() == ["sandbox", "1000", "sandbox"]


def test_javascript_may_await_at_its_top_level() -> None:
    with Sandbox(backend="wasm", timeout=300) as sandbox:
        assert (
            sandbox.exec_js("const os = require('os'); console.log(await Promise.resolve(typeof os))").stdout
            == "object\n"
        )
