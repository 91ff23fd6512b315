"""A real server and a real browser: Debian's chromium, driven by Playwright, headless."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from tests.helpers import require, reserve_port
from tests.serve.conftest import Server, start_server  # noqa: F401

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Milliseconds. Every wait in these tests: long enough for a machine that does much else.
PATIENCE = 60_000
NewPage = Callable[..., "Page"]


@pytest.fixture(scope="session")
def server(start_server: Any) -> Iterator[Server]:  # noqa: F811
    with start_server() as started:
        yield started


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with the last test of this directory: while Playwright is there it runs an event loop in this thread."""
    require(find_spec("playwright"), "playwright is not installed")
    chromium = shutil.which("chromium")
    require(chromium, "chromium is not installed")
    from playwright.sync_api import sync_playwright

    # No name resolves, so that nothing a guest puts on the page leaves this host. Chromium's own sandbox does not start for root.
    arguments = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=arguments, timeout=3 * PATIENCE)
        yield started
        started.close()


@pytest.fixture
def own_port() -> Iterator[int]:
    """For a server and the one after it."""
    with reserve_port() as port:
        yield port


@pytest.fixture
def new_page(browser: Browser) -> Iterator[NewPage]:
    """Makes pages that fail their test when the browser complains or asks for anything that is not the server's."""
    contexts, complaints = [], []

    def make(width: int = 1280, height: int = 800, complains: bool = False, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if not complains:
            page.on("request", lambda request: _is_local(request.url) or complaints.append(request.url))
            page.on("console", lambda said: _is_complaint(said.type, said.text) and complaints.append(said.text))
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


def _is_complaint(kind: str, text: str) -> bool:
    """Not that the server is gone: a page asks on for the moment between its server's end and its own."""
    return kind == "error" and "ERR_CONNECTION_REFUSED" not in text


def _is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1", "data:", "blob:http://127.0.0.1", "about:"))


def write(page: Page, code: str, language: str = "python") -> None:
    """Into the editor, as somebody who pastes it."""
    page.get_by_label("Language").select_option(language)
    page.get_by_role("textbox", name="Program in").click()
    page.keyboard.press("Control+A")
    page.keyboard.press("Backspace")  # what replaces coloured text keeps its colour, by an inline style of Chromium's
    page.keyboard.insert_text(code)


def run_cell(page: Page, number: int, code: str, until: str = "Done in") -> None:
    page.get_by_role("textbox", name=f"Code of cell {number}").click()
    page.keyboard.insert_text(code)
    page.keyboard.press("Control+Enter")
    page.get_by_role("article", name=f"Cell {number}").get_by_text(until).wait_for()
