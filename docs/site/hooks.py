"""Hooks of MkDocs: pages that lie outside of docs/ or are generated, and links between them.

The pages are written for readers of the repository. On the site, a link to a file without a page leads to a copy of it.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]
from command_reference import command_reference  # noqa: E402
from http_reference import http_reference, specification_json  # noqa: E402
from python_reference import python_pages  # noqa: E402

#: Pages outside of docs/, and where they are on the site.
ELSEWHERE = {
    "README.md": "overview.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples/index.md",
    "examples/kernels/README.md": "examples/kernels/index.md",
    **{
        f"benchmarks/results/{name}.md": f"results/{name}.md"
        for name in ("process", "peers", "computesdk", "living", "wasm", "images", "workspaces", "cluster", "gpu")
    },
}
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
_FENCE = re.compile(r"^(```.*?^```$)", re.M | re.S)
_NOT_RUN = re.compile(r"^<!-- not run: .*? -->\n", re.M)
_LIST_AFTER_TEXT = re.compile(r"^((?![-*|>#\s]|\d+\. ).+)\n(?=(?:[-*]|\d+\.) )", re.M)


def on_config(config: Any) -> Any:
    """Add every decision below the page that lists them."""
    folder = ROOT / "docs/decisions"
    decisions = [f"decisions/{path.name}" for path in sorted(folder.glob("0*.md"))]
    for section in config["nav"]:
        for pages in section.values():
            for place, page in enumerate(pages):
                if page == {"Decisions": "decisions/README.md"}:
                    pages[place] = {"Decisions": ["decisions/README.md", *decisions]}
    return config


def on_files(files: Files, config: Any) -> Files:
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for page, content in python_pages().items():
        files.append(File.generated(config, page, content=content))
    files.append(File.generated(config, "reference/command.md", content=command_reference()))
    files.append(File.generated(config, "reference/http.md", content=http_reference()))
    files.append(File.generated(config, "reference/openapi.json", content=specification_json()))
    for source in sorted(_linked_files()):
        files.append(File.generated(config, f"files/{source}", content=(ROOT / source).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    parts = _FENCE.split(_NOT_RUN.sub("", markdown))
    source = _source_of(page.file.src_uri)
    for index in range(0, len(parts), 2):  # every second one is code
        text = _LIST_AFTER_TEXT.sub(r"\1\n\n", parts[index])
        parts[index] = _LINK.sub(lambda link: _relink(link, source, page.file.src_uri), text)
    return "".join(parts)


def _relink(link: re.Match[str], source: str, page: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
    destination = _destination(target)
    if destination is None:
        return link[0]
    return link[1] + posixpath.relpath(destination, posixpath.dirname(page) or ".") + link[3]


def _destination(target: str) -> str | None:
    """Where a file of the repository is on the site. None if it has no place there: MkDocs then reports the link."""
    if (ROOT / target).is_dir():
        target = posixpath.join(target, "README.md")
    if target in ELSEWHERE:
        return ELSEWHERE[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"files/{target}" if (ROOT / target).is_file() else None


def _source_of(page: str) -> str:
    for source, place in ELSEWHERE.items():
        if place == page:
            return source
    return f"docs/{page}"


def _linked_files() -> set[str]:
    """Files of the repository that pages link to and that are not pages."""
    found = set()
    for source in [*ELSEWHERE, *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]:
        for link in _LINK.finditer((ROOT / source).read_text(encoding="utf-8")):
            target = os.path.normpath(os.path.join(os.path.dirname(source), link[2]))
            if (_destination(target) or "").startswith("files/"):
                found.add(target)
    return found
