"""The site that `make docs` builds: every page is in its navigation, and every internal link leads somewhere."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HOOKS = DOCS / "site/hooks.py"
GENERATED = {"reference/command.md", "reference/http.md", "reference/stores.md", "reference/errors.md"}
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")


def constant(path: Path, name: str) -> ast.expr:
    """The value of a constant, without importing the module: MkDocs need not be installed."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value  # type: ignore[attr-defined, no-any-return]
    raise AssertionError(f"{path.name} has no {name}")


def pages_elsewhere() -> dict[str, str]:
    """Pages outside of docs/, and where they are on the site."""
    code = compile(ast.Expression(constant(HOOKS, "ELSEWHERE")), "ELSEWHERE", "eval")
    found: dict[str, str] = eval(code)
    return found


def reference_pages() -> set[str]:
    table = ast.literal_eval(constant(DOCS / "site/python_reference.py", "PAGES"))
    return GENERATED | {f"reference/{name}.md" for name in table}


def pages_in_nav() -> list[str]:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", nav, re.M)


def test_the_navigation_has_every_page_once() -> None:
    """Except decisions, which a hook adds below the page that lists them."""
    own = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if not re.match(r"0\d+-", path.name)}
    expected = own | set(pages_elsewhere().values()) | reference_pages()
    assert Counter(pages_in_nav()) == Counter(expected)


def test_the_site_has_every_page_of_results_and_example() -> None:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks/results").glob("*.md")}
    found |= {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("README.md")}
    assert len(found) >= 6 and found - set(pages_elsewhere()) == set()


def test_pages_elsewhere_exist() -> None:
    assert [name for name in pages_elsewhere() if not (ROOT / name).is_file()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as the site and code hosts make them; repeated ones get a number."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


PAGES = sorted([*(ROOT / name for name in pages_elsewhere()), *DOCS.rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in LINK.findall(text):
        destination = page.parent / target if target else page
        assert anchor in anchors(destination), f"{page.name} links to {target}#{anchor}"
    for target in re.findall(r"\]\(([^)#:\s]+)[)#]", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_checks_see_what_is_wrong(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n\n## `Two` [things](x.md)\n\n## One thing\n\n```text\n# code\n```\n")
    assert anchors(page) == {"one-thing", "two-things", "one-thing-1"}
    assert "index.md" in pages_in_nav() and "decisions/README.md" in pages_in_nav()
