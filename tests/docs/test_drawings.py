"""The drawings on the pages: well-formed, narrow enough for a phone, and true."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRAWINGS = sorted((ROOT / "docs/drawings").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def names(drawing: Path) -> list[str]:
    """What it shows in bold."""
    return [node.text or "" for node in ElementTree.parse(drawing).iter() if node.get("class") == "name"]


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing(drawing: Path) -> None:
    """At 390 px its smallest text still has 9 px; it has colors for both schemes, and words for those who see none."""
    text = drawing.read_text(encoding="utf-8")
    image = ElementTree.fromstring(text)
    assert int(image.attrib["width"]) <= 480 and len(text) < 10_000
    assert "prefers-color-scheme: dark" in text
    assert image.findtext(f"{SVG}title") and image.findtext(f"{SVG}desc")
    assert not re.search(r"href=|<script|<image", text)


def test_the_architecture_shows_every_room_in_the_order_of_the_import_law() -> None:
    law = (ROOT / ".importlinter").read_text(encoding="utf-8").partition("layers =\n")[2].partition("exhaustive")[0]
    rooms = [name for line in law.splitlines() if (name := line.strip(" ()")) not in ("__main__", "errors")]
    assert names(ROOT / "docs/drawings/architecture.svg") == [*rooms, "guest"]


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/cage.md", "SECURITY.md"])
def test_pages_show_them(page: str) -> None:
    assert re.search(r"^!\[.+\]\(\S*drawings/\w+\.svg\)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
