"""Regressions of grep, rg and find, compared with GNU's tools, or with expected text for rg."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import toolbox_harness as harness

Mounts = dict[str, Path]
FILES = {
    "f": b"a\nb\nfoo bar foo\n\nzzz",
    "g": b"x\nfoo\n",
    "e": b"",
    "sub/latin": b"caf\xe9 foo\n",
    "bin": b"a\0foo\n",
}


@pytest.fixture
def tree(mounts: Mounts) -> Path:
    write_files(mounts["/work"])
    return mounts["/work"]


def write_files(directory: Path) -> None:
    (directory / "sub").mkdir()
    for name, content in FILES.items():
        (directory / name).write_bytes(content)


def both(command: str, mounts: Mounts, tmp_path: Path) -> tuple[tuple[int, bytes, bytes], tuple[int, bytes, bytes]]:
    """The output of our command and of the host's over the same files."""
    real_dir = tmp_path / "real"
    real_dir.mkdir()
    write_files(real_dir)
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    real = subprocess.run(["bash", "-c", command], cwd=real_dir, env=env, capture_output=True, check=False)
    ours = harness.run(["bash", "-c", command], mounts)
    return (ours.code, ours.stdout, ours.stderr), (real.returncode, real.stdout, real.stderr)


@pytest.mark.parametrize(
    "command",
    [
        "grep -f e f",
        "grep -vf e f g",
        "grep -cf e f",
        "grep -wf e f",
        "grep -xf e f",
        "grep -of e f",
        "grep -Lf e f g",
        "grep -lf e f g",
        "grep -f e -e foo f",
        "grep -f /dev/null -vn f",
        "grep -qf e f",
        "grep -L foo f",
        "grep -L zzzz f",
        "grep -L zzz f g",
        "grep -L foo f g e",
        "grep -qL foo f",
        "grep -qL zzzz f",
        "grep -L zzz f nope",
        "grep -l zzzz f",
        "grep -vL x f g",
        "grep -c foo f g e",
        "grep -ci FOO f g",
        "grep -cE 'fo+ ?b' f g",
        "grep -Ic foo bin f",
        "grep -IL zzzz bin f",
        "grep foo bin",
        "grep -A1 foo f g",
        "grep -C1 foo f g",
        "grep -r foo f",
        "grep -h -r foo g f",
    ],
)
def test_grep_as_gnu(command: str, tree: Path, mounts: Mounts, tmp_path: Path) -> None:
    ours, real = both(command, mounts, tmp_path)
    assert ours == real


@pytest.mark.parametrize(
    "pattern", ["needle", "NEEDLE", "n[aeiou]+dle$", "^(a|b).*e$", r"\bdle", "k|s", "ä", "é+", "."]
)
@pytest.mark.parametrize("options", ["-cE", "-ciE", "-nE", "-vcE"])
def test_many_lines_are_matched_as_few_are(pattern: str, options: str, mounts: Mounts) -> None:
    """Long inputs take other code paths (blocks, DFA) than short ones: all agree with GNU's."""
    chance = random.Random(11)
    words = ["needle", "Needle", "noodle", "b lake", "a tale", "k\u212a", "\u017f", "é", "", "\t", "x" * 70]
    text = "".join("".join(chance.choices(words, k=chance.randrange(6))) + "\n" for _ in range(9000)) + "needle"
    (mounts["/work"] / "text").write_text(text)
    command = ["grep", options, pattern, "text"]
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    real = subprocess.run(command, cwd=mounts["/work"], env=env, capture_output=True, check=False)
    ours = harness.run(command, mounts)
    assert (ours.code, ours.stdout) == (real.returncode, real.stdout)


def rg_json(arguments: str, mounts: Mounts) -> tuple[int, list[dict[str, Any]]]:
    outcome = harness.run(["sh", "-c", f"rg --json {arguments}"], mounts)
    return outcome.code, [json.loads(line) for line in outcome.text.splitlines()]


def test_rg_json_equals_ripgreps(tree: Path, mounts: Mounts) -> None:
    code, events = rg_json("-C1 foo f sub/latin", mounts)
    assert (code, [event["type"] for event in events]) == (
        0,
        ["begin", "context", "match", "context", "end", "begin", "match", "end", "summary"],
    )
    assert events[0] == {"type": "begin", "data": {"path": {"text": "f"}}}
    assert events[1]["data"] == {
        "path": {"text": "f"},
        "lines": {"text": "b\n"},
        "line_number": 2,
        "absolute_offset": 2,
        "submatches": [],
    }
    assert events[2]["data"] == {
        "path": {"text": "f"},
        "lines": {"text": "foo bar foo\n"},
        "line_number": 3,
        "absolute_offset": 4,
        "submatches": [
            {"match": {"text": "foo"}, "start": 0, "end": 3},
            {"match": {"text": "foo"}, "start": 8, "end": 11},
        ],
    }
    assert events[6]["data"]["lines"] == {"bytes": "Y2Fm6SBmb28K"}
    stats = events[8]["data"]["stats"]
    assert {name: stats[name] for name in stats if name != "elapsed"} == {
        "bytes_printed": 744,
        "bytes_searched": 29,
        "matched_lines": 2,
        "matches": 3,
        "searches": 2,
        "searches_with_match": 2,
    }


def test_rg_json_corner_cases(tree: Path, mounts: Mounts) -> None:
    code, events = rg_json("zzz", mounts)
    assert (code, events[1]["data"]["lines"], events[1]["data"]["line_number"]) == (0, {"text": "zzz"}, 5)
    code, events = rg_json("nothere", mounts)
    assert (code, [event["type"] for event in events]) == (1, ["summary"])
    code, events = rg_json("-v foo g", mounts)
    assert [event["data"].get("submatches") for event in events] == [None, [], None, None]
    code, events = rg_json("foo bin", mounts)
    assert (events[1]["data"]["lines"], events[2]["data"]["binary_offset"]) == ({"text": "a\0foo\n"}, 1)
    assert harness.run(["rg", "--json", "-c", "foo"], mounts).code == 2
    assert harness.run(["rg", "--json", "-q", "foo", "."], mounts).text == ""


def test_rg_without_paths_searches_the_tree_when_nothing_is_piped_in(tree: Path, mounts: Mounts) -> None:
    """Every run has a standard input; an empty one must not be searched."""
    found = harness.run(["sh", "-c", "rg -c foo"], mounts).text
    assert found == "f:1\ng:1\nsub/latin:1\n"
    assert harness.run(["sh", "-c", "rg -c foo"], mounts, stdin=b"foo\nfoo\n").text == "2\n"
    assert harness.run(["sh", "-c", "echo foo | rg -c foo"], mounts).text == "1\n"


def test_rg_ignores_the_same_files_as_ripgrep(tree: Path, mounts: Mounts) -> None:
    (tree / "link").symlink_to("f")
    assert harness.run(["rg", "-c", "bar", "."], mounts).text == "./f:1\n"
    assert harness.run(["rg", "-Lc", "bar", "."], mounts).text == "./f:1\n./link:1\n"
    assert harness.run(["rg", "foo", "bin"], mounts).text == 'binary file matches (found "\\0" byte around offset 1)\n'
    assert harness.run(["rg", "--passthru", "zzzz", "g"], mounts).text == "x\nfoo\n"
    missing = harness.run(["rg", "foo", "g", "nope"], mounts)
    assert (missing.code, missing.text) == (2, "g:foo\n")


def test_a_walk_from_the_root_passes_the_devices(tree: Path, mounts: Mounts) -> None:
    outcome = harness.run(["sh", "-c", "find / -name 'f*' | sort; find / -name latin -exec echo found {} \\;"], mounts)
    assert (outcome.text, outcome.errors) == ("/dev/fd\n/dev/full\n/work/f\nfound /work/sub/latin\n", "")
    assert harness.run(["find", "/"], mounts).code == 0
    assert harness.run(["ls", "/dev/fd"], mounts).text == "0\n1\n2\n"
    assert harness.run(["grep", "-rl", "foo", "/"], mounts).text.split() == [
        "/work/bin",
        "/work/f",
        "/work/g",
        "/work/sub/latin",
    ]
    assert harness.run(["rg", "-l", "bar", "/"], mounts).text == "/work/f\n"
