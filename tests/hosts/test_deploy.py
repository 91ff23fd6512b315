"""The profile in deploy/: enough, and what the cage's own lists say. The rest: scripts/test-deploy, scripts/test-docker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import has_user_namespaces, require

ROOT = Path(__file__).resolve().parents[2]
PROFILE = ROOT / "deploy" / "seccomp.json"
EVERYTHING = """
from warmcell import Sandbox, run
assert run("print(6*7)").enforced.enforcer == "native"
with Sandbox() as sandbox:
    print(sandbox.spawn("hostname; cat /proc/self/status | grep -c Seccomp").wait().stdout)
"""


def behind(profile: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.hosts.allow_calls", str(profile), sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=environment)


def test_the_profile_is_made_of_our_own_lists() -> None:
    made = subprocess.run([sys.executable, "scripts/make-seccomp-profile"], capture_output=True, check=True, cwd=ROOT)
    assert made.stdout.decode() == PROFILE.read_text(), "scripts/make-seccomp-profile > deploy/seccomp.json"


def test_cages_are_made_behind_it() -> None:
    require(has_user_namespaces(), "this host has no user namespaces")
    ended = behind(PROFILE, EVERYTHING)
    assert (ended.returncode, ended.stdout.split()[:1]) == (0, ["sandbox"]), ended.stderr


@pytest.mark.parametrize("name", ["unshare", "pivot_root"])
def test_and_not_behind_one_that_lacks_a_call(name: str, tmp_path: Path) -> None:
    require(has_user_namespaces(), "this host has no user namespaces")
    profile = json.loads(PROFILE.read_text())
    profile["syscalls"][0]["names"].remove(name)
    file = tmp_path / "less.json"
    file.write_text(json.dumps(profile))
    assert behind(file, EVERYTHING).returncode != 0


def test_an_image_is_built_of_the_checkout_alone() -> None:
    """`docker build` would send what git leaves out as well: virtual environments, half a gigabyte of them."""
    ours = [line for line in (ROOT / ".gitignore").read_text().split() if not line.startswith("#")]
    said = (ROOT / ".dockerignore").read_text().splitlines()
    words = [line.strip("/") if line.startswith("/") else f"**/{line.rstrip('/')}" for line in ours]
    assert said[1:] == [".git", *words]
