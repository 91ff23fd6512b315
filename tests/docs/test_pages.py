"""Pages that other things rely on: links, the README's commands, the claims."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CLAIM = re.compile(r"^\| (SK-[A-Z]{2}-\d+) \| (.+) \| (\w+) \|$", re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_ci_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = "./scripts/test"
    assert f"```bash\n{command}\n```" in readme
    assert (ROOT / ".ci/run").read_text(encoding="utf-8").rstrip().endswith(f"exec {command}")


@pytest.mark.parametrize("name", [".ci/run", "scripts/test", "scripts/test-as-user"])
def test_scripts_can_be_run(name: str) -> None:
    assert (ROOT / name).stat().st_mode & 0o100


def test_claims_have_ids_of_their_own() -> None:
    claims = CLAIM.findall((ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    ids = [claim[0] for claim in claims]
    assert len(ids) == len(set(ids)) >= 30
    assert {claim[2] for claim in claims} <= {"all", "caged", "native", "wasm"}


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs/decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    for page in folder.glob("0*.md"):
        assert page.name in listed
