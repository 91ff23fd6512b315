"""The snippets of docs/integrations.md, each where its framework is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.seats.scripted_models import MODELS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
FRAMEWORKS = {
    "deepagents": "deepagents",
    "pydantic-ai": "pydantic_ai",
    "inspect-ai": "inspect_ai",
    "smolagents": "smolagents",
    "openai-agents": "agents",
    "langchain": "langchain_core",
    "autogen": "autogen_core",
    "google-adk": "google.adk",
    "mini-swe-agent": "minisweagent",
}
#: Described in docs/harnesses.md, and not installed by scripts/test-seats.
HARNESSES = {"harbor": "harbor", "nemo-gym": "nemo_gym", "openenv": "openenv", "openhands": "openhands"}
SECTIONS = re.findall(r"^## [^\n]*\(`warmcell\[([\w-]+)\]`\)$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
SNIPPETS = [
    (extra, code) for extra, text in SECTIONS for code in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
]


def test_every_seat_is_on_the_page_and_has_an_extra() -> None:
    assert {extra for extra, _ in SNIPPETS} == set(FRAMEWORKS)
    files = {path.stem for path in (ROOT / "src/warmcell/interfaces/seats").glob("*.py")}
    seats = {**FRAMEWORKS, **HARNESSES}
    assert {extra.replace("-", "_") for extra in seats} == files - {"__init__", "cage_commands", "openai_sandbox"}
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", extras, re.M) for extra in seats)
    harnesses = (ROOT / "docs/harnesses.md").read_text(encoding="utf-8")
    assert all(name in harnesses.lower().replace(" ", "-") for name in HARNESSES)


@pytest.mark.parametrize(("extra", "code"), SNIPPETS, ids=[extra for extra, _ in SNIPPETS])
def test_a_snippet_runs(
    extra: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, where its framework is loaded already: that takes seconds for most of them."""
    pytest.importorskip(FRAMEWORKS[extra])
    monkeypatch.chdir(tmp_path)
    names = {"model": MODELS[extra]()} if re.search(r"\bmodel\b", code) else {}
    expected = "42" if names else "hello|warmcell|run_code"
    exec(compile(code, f"{extra} in docs/integrations.md", "exec"), names)
    assert re.search(expected, capsys.readouterr().out)


@pytest.mark.parametrize("extra", [*FRAMEWORKS, *HARNESSES])
def test_without_its_framework_a_seat_names_the_extra(extra: str) -> None:
    code = (
        f"import sys; sys.modules[{(FRAMEWORKS | HARNESSES)[extra]!r}] = None; sys.modules['PIL'] = None\n"
        f"import warmcell.interfaces.seats.{extra.replace('-', '_')}"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert f"pip install 'warmcell[{extra}]'" in ended.stderr
