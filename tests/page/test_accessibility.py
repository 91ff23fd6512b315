"""axe-core finds nothing in any view, light and dark, wide and narrow.

`axe.min.js` is the file of the npm package axe-core 4.14.0 (MPL-2.0), unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.page.conftest import NewPage, run_cell, write
from tests.serve.conftest import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = Path(__file__).with_name("axe.min.js")
#: What each view shows when it has loaded.
SHOWN = {
    "run": "Done",
    "sandboxes": "stays for",
    "activity": "At this moment",
    "usage": "Processor time",
    "audit": "/v1/identity",
    "doctor": "Protections",
}
TABS = {
    "cells": "Raised in",
    "files": "a.txt",
    "terminal": "Connected",
    "processes": "echo started",
    "ports": "Port 8000",
}


def findings(page: Page) -> list[str]:
    """Evaluated by the debugger, which the page's Content-Security-Policy does not concern."""
    page.evaluate(AXE.read_text())
    found: list[str] = page.evaluate("""async () => {
        const result = await axe.run(document, { resultTypes: ["violations"] });
        return result.violations.flatMap(one => one.nodes.map(node => `${one.id}: ${node.target.join(" ")} ${node.failureSummary}`));
    }""")
    return found


@pytest.fixture(scope="module")
def audited(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with start_server("--audit", str(tmp_path_factory.mktemp("audit") / "audit.jsonl")) as server:
        yield server


def fill(server: Server) -> str:
    """A sandbox with something in every tab."""
    made: str = server.client.post("/v1/sandboxes", json={}).json()["id"]
    at = f"/v1/sandboxes/{made}"
    server.client.put(f"{at}/files/a.txt", content="one\n").raise_for_status()
    server.client.post(f"{at}/processes", json={"command": "echo started; sleep 600"}).raise_for_status()
    server.client.post(f"{at}/ports", json={"port": 8000}).raise_for_status()
    return made


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing(audited: Server, new_page: NewPage, theme: str, width: int) -> None:
    page = new_page(width=width, color_scheme=theme, complains=True)
    made, found = fill(audited), {}
    page.goto(audited.url)
    write(page, "for number in range(300): print('line', number)")
    page.keyboard.press("Control+Enter")
    for view, shown in SHOWN.items():
        page.goto(f"{audited.url}/#/{view}")
        page.locator("main").get_by_text(shown).and_(page.locator(":visible")).first.wait_for()
        found[view] = findings(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width, view
    page.goto(f"{audited.url}/#/sandboxes/{made}")
    run_cell(page, 1, "print('x' * 400)\n1 / 0", until="Raised in")
    for tab, shown in TABS.items():
        page.goto(f"{audited.url}/#/sandboxes/{made}/{tab}")
        page.locator("main").get_by_text(shown).and_(page.locator(":visible")).first.wait_for()
        found[tab] = findings(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width, tab
    page.keyboard.press("Control+Shift+L")
    page.goto(f"{audited.url}/#/run")
    page.get_by_role("button", name="Options").click()
    found["options"] = findings(page)
    page.keyboard.press("Control+K")
    page.get_by_role("combobox", name="Find a command").wait_for()
    found["palette"] = findings(page)
    assert {view: found[view] for view in found if found[view]} == {}


def test_axe_finds_something_where_there_is_something(new_page: NewPage) -> None:
    """Otherwise the test above would say nothing."""
    page = new_page(complains=True)
    page.set_content("<html lang=en><title>x</title><main><h1>x</h1><img src='data:,'></main></html>")
    assert [one.partition(":")[0] for one in findings(page)] == ["image-alt"]


def test_axe_finds_nothing_in_the_sign_in(start_server: Any, new_page: NewPage) -> None:
    with start_server("--token", "a-token") as server:
        page = new_page(complains=True)  # of 401, on the console
        page.goto(server.url)
        page.get_by_label("Token").wait_for()
        assert findings(page) == []
