"""scripts/plain-english finds nothing in src, the tests' helper modules, scripts, benchmarks, build code and pages."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "warmcell"


def find_rooms() -> list[str]:
    """The directories of src, those of `interfaces` and `backends` one by one, and the modules beside them."""
    rooms: list[str] = []
    for place in sorted(SOURCE.iterdir()):
        if place.name in {"interfaces", "backends"}:
            rooms += [f"{place.name}/{inner.name}" for inner in sorted(place.iterdir())]
        else:
            rooms.append(place.name)
    return [room for room in rooms if room.endswith(".py") or any((SOURCE / room).rglob("*.py"))]


@cache
def run(*paths: str) -> str:
    command = [sys.executable, "scripts/plain-english", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("room", find_rooms())
def test_a_room_is_written_in_plain_english(room: str) -> None:
    assert run(str(SOURCE / room)) == ""


def test_helper_modules_and_scripts_are_written_in_plain_english() -> None:
    helpers = [str(path) for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    scripts = [str(path) for path in (ROOT / "scripts").iterdir() if path.is_file() and is_python(path)]
    builds = [str(ROOT / name) for name in ("benchmarks", "modules", "toolbox", "hatch_build.py")]
    assert run(*sorted(helpers), *sorted(scripts), *builds) == ""


def test_pages_are_written_in_plain_english() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert run(*sorted(map(str, pages))) == ""


def is_python(path: Path) -> bool:
    return path.name != "plain-english" and path.open(errors="replace").readline().startswith("#!/usr/bin/env python3")


BAD = '''
def told(): ...
def begun(): ...
def files_made(): ...
def found():
    """Who asks is told. Whoever hears nothing, and nobody else, is no caller."""
    # What came is an event that there is not.
'''
GOOD = '''
def read_file(): ...
def is_closed(): ...
def feed(): ...
def shared_backend():
    """The caller who asks gets an answer. It is no longer open. There is no file."""
    return {"told": 1}
'''


@pytest.mark.parametrize(("text", "findings"), [(BAD, 12), (GOOD, 0)], ids=["bad", "good"])
def test_the_lint_finds_what_it_is_for(tmp_path: Path, text: str, findings: int) -> None:
    path = tmp_path / "sample.py"
    path.write_text(text)
    assert len(run(str(path)).splitlines()) == findings, run(str(path))


PAGE = """Whoever reads this

page, and nobody else, sees `told` and

```python
text = "told"
```

the rest.
"""


def test_the_lint_reads_the_prose_of_a_page(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    found = [line.split(":")[1] for line in run(str(path)).splitlines()]
    assert found == ["1", "3"], run(str(path))


def test_the_lint_leaves_out_what_a_build_unpacked(tmp_path: Path) -> None:
    for directory in ("own", ".patched/library"):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "page.md").write_text(PAGE)
    found = {line.split(":")[0] for line in run(str(tmp_path)).splitlines()}
    assert found == {str(tmp_path / "own" / "page.md")}
