"""zip behaves like Info-ZIP's: percentages, -d, -u, -m, lists of patterns."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import toolbox_harness as harness

Mounts = dict[str, Path]
STEPS = [
    "zip z f g",
    "zip z s f",
    "unzip -l z",
    "zip -d z g",
    "zip -d z nope",
    "zip -d z f nope",
    "zip -d z s",
    "zip -d z x",
    "zip -d none x",
    "zip -qd none x",
    "zip y f nope",
    "zip -r y d zeros empty",
    "zip -r y d",
    "zip -d y 'd/*'",
    "zip -u y f",
    "zip -f y f s",
    "zip -0 stored s",
    "zip -j flat d/a",
    "printf 'f\\nd/a\\n' | zip -@ named",
    "zip -r some d f -x 'd/*' 's*'",
    "zip -r chosen d f s -i 'd/*' f",
    "zip -T some",
    "zip -m moved g; ls g",
    "unzip -p moved g",
    "zip -q -d y '*'; zip -d y x",
]


def write_files(directory: Path) -> None:
    (directory / "d").mkdir()
    files = {
        "f": "a\nb\nfoo bar\n",
        "g": "x\nfoo\n",
        "s": "ab" * 5000,
        "d/a": "1\n",
        "zeros": "0" * 100_000,
        "empty": "",
    }
    for name, content in files.items():
        (directory / name).write_text(content)
    for path in (*directory.rglob("*"), directory):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def test_as_info_zip(mounts: Mounts, tmp_path: Path) -> None:
    if shutil.which("zip") is None or shutil.which("unzip") is None:
        pytest.skip("zip is not installed here")
    real_dir = tmp_path / "real"
    real_dir.mkdir()
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    for directory in (real_dir, mounts["/work"]):
        write_files(directory)
    for step in STEPS:
        real = subprocess.run(["bash", "-c", step], cwd=real_dir, env=env, capture_output=True, text=True, check=False)
        ours = harness.run(["bash", "-c", step], mounts)
        assert (ours.code, ours.text) == (real.returncode, real.stdout), step


def test_percentages_and_deletion(mounts: Mounts) -> None:
    """The same by expected text, for hosts without zip."""
    write_files(mounts["/work"])
    outcome = harness.run(["bash", "-c", "zip z s f && zip z f && zip -d z f && unzip -l z | tail -1"], mounts)
    assert outcome.text == (
        "  adding: s (deflated 100%)\n  adding: f (stored 0%)\nupdating: f (stored 0%)\ndeleting: f\n"
        "    10000                     1 file\n"
    )
    failed = harness.run(["zip", "-d", "z", "nope"], mounts)
    assert (failed.code, failed.text) == (
        12,
        "\tzip warning: name not matched: nope\n\nzip error: Nothing to do! (z.zip)\n",
    )
