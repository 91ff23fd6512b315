"""Every snippet of every page is run: Python as it stands, shell sessions with the output that they show."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S)
RUN = {"python", "console", "bash", "sh"}
#: What a snippet that is not run must be about.
EXCUSES = re.compile(
    r"install|registry|other system|macOS|Windows|what runs these snippets|needs a \w+|until it is stopped", re.I
)


@dataclass(frozen=True)
class Snippet:
    page: str
    line: int
    kind: str
    body: str
    why_not_run: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets() -> list[Snippet]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start("body"))
            name = str(page.relative_to(ROOT))
            found.append(Snippet(name, line, match["kind"], match["body"], match["why"]))
    return found


ALL = snippets()


def having(*kinds: str) -> list[Snippet]:
    return [item for item in ALL if item.kind in kinds and item.why_not_run is None]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A shell in which `warmcell` and `python` are the ones under test: the checkout's, or what was installed."""
    if os.environ.get("WARMCELL_INSTALLED") == "1":  # scripts/try-wheels
        return {**os.environ, "PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("warmcell", " -m warmcell"), ("python", ""), ("python3", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize("snippet", having("python"), ids=str)
def test_python(snippet: Snippet, tmp_path: Path, environment: dict[str, str]) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(snippet.body, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def session(body: str) -> list[tuple[str, str]]:
    """`$ command` lines with what is shown below each."""
    steps: list[tuple[str, str]] = []
    for line in body.splitlines(keepends=True):
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        else:
            command, shown = steps.pop()
            steps.append((command, shown + line))
    return steps


SESSIONS = [(item, *step) for item in having("console") for step in session(item.body)]
SCRIPTS = [(item, "set -e\n" + item.body, None) for item in having("bash", "sh")]


@pytest.mark.parametrize(("snippet", "command", "shown"), SESSIONS + SCRIPTS, ids=lambda value: str(value).strip()[:60])
def test_shell(snippet: Snippet, command: str, shown: str | None, tmp_path: Path, environment: dict[str, str]) -> None:
    """A session prints what the page shows; a script succeeds."""
    ended = shell(command, tmp_path, environment)
    if shown is None:
        assert ended.returncode == 0, f"{snippet}: {ended.stdout}{ended.stderr}"
    else:
        pattern = re.escape(shown).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, ended.stdout, re.S), f"{snippet}: {ended.stdout}{ended.stderr}"


def shell(script: str, where: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script],
        cwd=where,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_what_is_not_run_has_an_excuse() -> None:
    for snippet in ALL:
        assert snippet.kind, f"{snippet}: a fence without a language is not checked by anybody"
        if snippet.kind in RUN and snippet.why_not_run is not None:
            assert EXCUSES.search(snippet.why_not_run), f"{snippet}: {snippet.why_not_run}"


def test_the_finder_finds_them() -> None:
    assert {item.kind for item in having(*RUN)} >= {"python", "console"}
    assert sum(item.why_not_run is not None for item in ALL) >= 2
