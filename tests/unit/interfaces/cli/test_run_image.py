"""`warmcell run --image`: a real image in a store of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.images import ImageStore


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory whose image store has `tiny:1`, a shell that is its own entry point."""
    busybox = shutil.which("busybox")
    require(busybox, "busybox is not installed")
    cache = tmp_path_factory.mktemp("cache")
    root = cache / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(str(busybox), root / "bin/sh")
    for name in ("id", "cat"):
        (root / "bin" / name).symlink_to("sh")
    ImageStore(cache / "warmcell/images").import_(root, "tiny:1")
    return cache


def _run(cache: Path, *words: str, stdin: str = "", name: str = "run") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", "warmcell", name, *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, input=stdin, check=False)


def test_a_command_with_our_stdin(cache: Path) -> None:
    done = _run(cache, "--image", "tiny:1", "command", "-c", "cat; id -u; exit 3", stdin="given\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "given\n1000\n", "")


def test_a_user_of_the_image(cache: Path) -> None:
    assert _run(cache, "--image", "tiny:1", "--user", "root", "command", "-c", "id -u").stdout == "0\n"


def test_without_a_program_the_image_decides(cache: Path) -> None:
    """This one has no ENTRYPOINT: the words are the command."""
    done = _run(cache, "--image", "tiny:1", "--", "sh", "-c", 'echo "$0" from $PWD', "{code}")
    assert (done.returncode, done.stdout) == (0, "{code} from /work\n"), done.stderr
    assert "neither ENTRYPOINT nor CMD" in _run(cache, "--image", "tiny:1").stderr


def test_programs_are_judged_in_an_image(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "1.in").write_text("7\n")
    (tmp_path / "1.out").write_text("7 as 0\n")
    (tmp_path / "main.sh").write_text("read x; echo $x as $(id -u)")
    words = (str(tmp_path / "main.sh"), "--cases", str(tmp_path), "--image", "tiny:1", "--user", "root")
    done = _run(cache, *words, name="judge")
    assert done.returncode == 0 and "1" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--image", "missing:1", "command", "-c", "true"), "missing:1"),
        (("--image", "tiny:1", "python", "-c", "1"), "has no python3"),
        (("--image", "tiny:1", "rust", "-c", "1"), "do not run in an image"),
        (("--image", "tiny:1", "--", "no-such-program"), "no-such-program"),
        (("--user", "root", "command", "-c", "true"), "--user needs --image"),
        (("--image", "tiny:1", "--user", "stranger", "command", "-c", "true"), "no user 'stranger'"),
        (("--image", "tiny:1", "--record", "x.jsonl", "command", "-c", "true"), "--record"),
        (("--image", "tiny:1", "--backend", "wasm", "command", "-c", "true"), "--image needs the process backend"),
    ],
)
def test_what_is_refused(cache: Path, words: tuple[str, ...], reason: str) -> None:
    done = _run(cache, *words)
    assert done.returncode in (2, 125) and done.stdout == "" and reason in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
