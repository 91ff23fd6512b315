"""What must never be in the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {".git", ".venv", "node_modules", "build", "dist", "__pycache__"}
# Spelt with brackets so that this file does not find itself.
MACHINE_PATHS = re.compile("/[r]oot/[.](?:pyenv|cargo|rustup|cache)|/[w]ork/(?:main|shared|[.]library)|/tmp/[v]env-")
HOME_PATHS = re.compile("/[r]oot/")
REGISTRIES = re.compile(
    "files[.]pythonhosted|registry[.]npmjs|proxy[.]golang|static[.]crates|index[.]crates|deb[.]debian|repo1[.]maven"
)
OLD_NAME = re.compile(b"[s]andkeep", re.IGNORECASE)


def files() -> list[Path]:
    """Tracked files; in a copy without history, every file that is not a build product."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        return [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not SKIPPED & set(path.relative_to(ROOT).parts)]


def texts() -> list[tuple[str, str]]:
    found = []
    for path in files():
        data = path.read_bytes()
        if b"\0" not in data[:8192] and not path.name.endswith((".lock", ".sum", "-lock.json")):
            found.append((str(path.relative_to(ROOT)), data.decode("utf-8", "replace")))
    return found


def offenders(pattern: re.Pattern[str], *, tests_too: bool) -> list[str]:
    return [
        f"{name}: {match.group()}"
        for name, text in texts()
        if tests_too or not name.startswith("tests/")
        for match in pattern.finditer(text)
    ]


def test_no_path_of_the_machine_it_was_made_on() -> None:
    assert offenders(MACHINE_PATHS, tests_too=True) == []


def test_no_home_of_the_machine_outside_the_attacks() -> None:
    assert offenders(HOME_PATHS, tests_too=False) == []


def test_no_registry_is_named() -> None:
    assert offenders(REGISTRIES, tests_too=True) == []


def test_the_old_name_is_one_line_of_the_changelog() -> None:
    """In every file, built ones too, and in the names of files."""
    named = [path for path in files() if OLD_NAME.search(str(path.relative_to(ROOT)).encode() + path.read_bytes())]
    assert [str(path.relative_to(ROOT)) for path in named] == ["CHANGELOG.md"]
    assert len([line for line in named[0].read_bytes().splitlines() if OLD_NAME.search(line)]) == 1


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", ".ci/run"])
def test_what_a_reader_looks_for_is_there(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").strip()


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
