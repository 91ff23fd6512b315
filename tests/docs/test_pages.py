"""Pages that other things rely on: links, the README's commands, the claims."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from warmcell.backends.process import run_result
from warmcell.core.types import MIB
from warmcell.interfaces.cli.parser import parse

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CLAIM = re.compile(r"^\| (WC-[A-Z]{2}-\d+) \| (.+) \| (\w+) \|$", re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_ci_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = "./scripts/test"
    assert f"```bash\n{command}\n```" in readme
    lanes = re.findall(r"^lane \"[\w ]+\" (\S+)", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.M)
    assert lanes[0] == command and "./scripts/try-readme" in lanes


@pytest.mark.parametrize("name", [".ci/run", *(f"scripts/{path.name}" for path in (ROOT / "scripts").iterdir())])
def test_scripts_can_be_run(name: str) -> None:
    """All but those that others source."""
    assert bool((ROOT / name).stat().st_mode & 0o100) == (not name.endswith(".sh"))


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


def test_the_readme_starts_with_what_a_visitor_needs() -> None:
    """Two sentences, a command that runs something, a command that tests, ten lines of Python."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    title, description, *_ = readme.split("\n\n")
    assert title.startswith("# ") and len(re.findall(r"\.(?:\s|$)", description)) == 2
    kinds = re.findall(r"^```(\w+)\n(.*?)^```$", readme, re.M | re.S)[:3]
    assert [kind for kind, _ in kinds] == ["bash", "bash", "python"]
    assert all(body.count("\n") == 1 for _, body in kinds[:2])
    assert kinds[2][1].count("\n") <= 10


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in readme


def test_the_readme_names_every_option_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["run", "--help"])
    options = set(re.findall(r"--[a-z][\w-]+", capsys.readouterr().out)) - {"--help", "--code"}
    assert len(options) >= 10
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [option for option in options if f"`{option}" not in readme] == []


def test_every_extra_is_in_the_readme() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in extras if not name.startswith("test") and f"`warmcell[{name}]`" not in readme] == []


def test_every_step_of_the_cage_is_explained() -> None:
    """What an error names must be found on the page for reviewers."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src/warmcell/cage").rglob("*.py")]
    steps = {name for text in sources for name in re.findall(r'(?:step|CageError|\.part)\(\s*"([^"]+)"', text)}
    page = " ".join((ROOT / "docs/cage.md").read_text(encoding="utf-8").split())
    assert len(steps) >= 30
    assert [name for name in sorted(steps) if f"*{name}*" not in page] == []


@pytest.mark.parametrize("pages", ["architecture.md", "cage.md", "decisions/*.md"])
def test_the_modules_on_the_pages_for_reviewers_exist(pages: str) -> None:
    folders = [ROOT / "src", ROOT / "tests", ROOT / "scripts", ROOT / "modules"]
    files = [path.as_posix() for folder in folders for path in folder.rglob("*.py")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob(pages))
    named = set(re.findall(r"`([\w/]+\.py)\b", text))
    assert len(named) >= 20
    assert [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in files)] == []


def test_the_layers_on_the_page_are_tests() -> None:
    tests = set(
        re.findall(r"^def (test_\w+)", (ROOT / "tests/escape/test_layers.py").read_text(encoding="utf-8"), re.M)
    )
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/cage.md").read_text(encoding="utf-8")))
    assert named == tests


def test_the_security_page_knows_every_class() -> None:
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/warmcell").rglob("*.py"))
    classes = set(re.findall(r'isolation_class ?= ?"([^"]+)"', sources))
    assert classes >= {"process", "process+sandbox", "landlock", "wasm"}
    assert [name for name in sorted(classes - {"fake"}) if f"| `{name}`" not in security] == []


def test_the_pages_state_the_memory_margins_of_the_code() -> None:
    native, python, other = run_result._NATIVE, run_result._WARM_PYTHON, run_result._INTERPRETER
    gpu = run_result._WITH_GPU
    table = (ROOT / "docs/judging.md").read_text(encoding="utf-8")
    for name, pages in {"compiled programs": native, "Python": python, "other interpreters": other}.items():
        assert f"| memory, {name} | below the limit | {pages.usual // MIB} MB over it" in table
    security = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
    assert (
        f"{native.usual // MIB} MB are deducted for files of a compiled program, {python.usual // MIB} MB in warm Python,"
        f" {other.usual // MIB} MB in another interpreter, {gpu.usual // MIB // 1024} GB with a GPU"
    ) in security
    new = f"{native.new // MIB}, {python.new // MIB}, {other.new // MIB} MB or {gpu.new // MIB // 1024} GB more"
    assert new in security


def test_make_knows_the_benchmark() -> None:
    assert "bench:\n\t.venv/bin/python benchmarks/process.py\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
