"""Guests that want more than to be looked at: nothing that they print, name or show runs in the page or leaves it.

The canary is the page's own: `ran`, which every payload sets wherever it gets to run, here, in its frame or on top.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.page.conftest import NewPage, write
from tests.serve.conftest import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

SET = "self.ran = 1; try { top.ran = 1 } catch (_) {}"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[socket.socket]:
    """Where a guest would like the browser to call."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def markup(elsewhere: socket.socket) -> str:
    at = f"http://127.0.0.1:{elsewhere.getsockname()[1]}"
    return (
        f'<script>{SET}</script><img src="data:," onerror="{SET}"><svg onload="{SET}"></svg>'
        f"<iframe srcdoc=\"<script>{SET}</script>\"></iframe><details open ontoggle='{SET}'>x</details>"
        f'<meta http-equiv=refresh content="0;url={at}/meta"><base href="{at}/">'
        f'<link rel=stylesheet href="{at}/link"><link rel=preconnect href="{at}"><img src="{at}/img">'
        f'<style>@import "{at}/css"; body {{ background: url({at}/bg) }}</style>'
        '<form action="/v1/sandboxes" method=post><button>x</button></form><object data="/"></object><embed src="/">'
        f'<a href="{at}/link" id=link>x</a><table><tr><td>harmless</td></tr></table>'
    )


def picture(elsewhere: socket.socket) -> str:
    at = f"http://127.0.0.1:{elsewhere.getsockname()[1]}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" onload="{SET}"><script>{SET}</script>'
        f'<image href="{at}/svg"/></svg>'
    )


def ran(page: Page) -> bool:
    """In any frame. What a payload could have reached by now, it has: nothing of it waits for anybody."""
    page.wait_for_timeout(300)
    return any(frame.evaluate("'ran' in self") for frame in page.frames)


def assert_untouched(page: Page, server: Server, elsewhere: socket.socket) -> None:
    assert not ran(page)
    assert page.url.startswith(server.url)
    assert {frame.url for frame in page.frames[1:]} <= {f"{server.url}/page/frame.html"}
    with pytest.raises(BlockingIOError):  # nobody has called
        elsewhere.accept()


def test_the_payload_is_one(new_page: NewPage) -> None:
    """Shown as a page of its own it does run: otherwise the other tests would say nothing."""
    page = new_page(complains=True)
    page.set_content(f'<script>{SET}</script><img src="data:," onerror="{SET}">')
    assert ran(page)


def test_what_a_program_prints_and_leaves(server: Server, new_page: NewPage, elsewhere: socket.socket) -> None:
    from playwright.sync_api import Error

    page, html = new_page(complains=True), markup(elsewhere)  # on the console, of all that it was kept from
    page.goto(server.url)
    escapes = "\x1b]0;title\x07\x1b]8;;http://evil.example\x07link\x1b]8;;\x07\x1b]52;c;eA==\x07\x1b[6n\x1b[2J\x9b31m\x1bP+q\x1b\\\x1b[38;2;1"
    code = (
        f"html = {html!r}\nprint(html)\nprint({escapes!r})\nimport sys; print(html, file=sys.stderr)\n"
        f"for name in ('page.html', 'table.csv'): open(name, 'w').write(html)\n"
        f"open('picture.svg', 'w').write({picture(elsewhere)!r})\nopen('broken.png', 'w').write(html)\nopen('notes.txt', 'w')"
    )
    write(page, code)
    page.keyboard.press("Control+Enter")
    page.get_by_text("Done", exact=True).wait_for()
    page.locator("iframe").content_frame.get_by_text("harmless").wait_for()
    page.get_by_text("This is not a picture").wait_for()
    assert html in page.get_by_role("log").inner_text().replace("\n", "")
    assert page.get_by_role("log").locator("a, img, script, iframe").count() == 0
    assert page.title() == "Run · Warmcell"
    with suppress(Error):
        page.locator("iframe").content_frame.locator("#link").click(timeout=1000)
    assert_untouched(page, server, elsewhere)


def test_what_a_cell_shows_and_how_files_are_called(
    server: Server, new_page: NewPage, elsewhere: socket.socket
) -> None:
    page, html = new_page(complains=True), markup(elsewhere)
    names = [
        '<img src=x onerror="top.ran=1">.html',
        "a\u202egnp.exe",
        "x\ny.txt",
        "%2e%2e%2f",
        "javascript:top.ran=1",
        "#&?",
    ]
    identity = server.client.post("/v1/sandboxes", json={"metadata": {"name": html[:90]}}).json()["id"]
    page.goto(f"{server.url}/#/sandboxes")
    page.get_by_text("<script>").wait_for()
    page.goto(f"{server.url}/#/sandboxes/{identity}")
    page.get_by_role("textbox", name="Code of cell 1").click()
    page.keyboard.insert_text(f"""
class Hostile:
    def __init__(self, bundle): self.bundle = bundle
    def _repr_mimebundle_(self, **_): return self.bundle
html, svg = {html!r}, {picture(elsewhere)!r}
for bundle in ({{"text/html": html}}, {{"image/svg+xml": svg}}, {{"image/png": '"><script>top.ran=1</script>'}},
               {{"__proto__": html, "text/plain": html}}, {{"application/javascript": "top.ran=1"}},
               {{"application/json": {{"toString": html, "__proto__": {{"html": html}}}}}}, {{"text/html": ""}}, {{html[:90]: html}}):
    display(Hostile(bundle))
for name in {names!r}:
    open(name, "w").write(html)
raise ValueError(html)
""")
    page.keyboard.press("Control+Enter")
    page.get_by_text("Raised in").wait_for()
    page.locator("iframe").first.content_frame.get_by_text("harmless").wait_for()
    assert_untouched(page, server, elsewhere)
    page.goto(f"{server.url}/#/sandboxes/{identity}/files")
    page.get_by_role("button", name="onerror").click()
    page.locator(".file-card iframe").content_frame.get_by_text("harmless").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download <img").click()
    assert not set(download.value.suggested_filename) & set('<>"/\\')
    for name in ("javascript:", "#&?", "%2e"):
        page.get_by_role("button", name=name).click()
        page.get_by_role("textbox", name="Content of").wait_for()
    assert_untouched(page, server, elsewhere)
    server.client.delete(f"/v1/sandboxes/{identity}")


def test_a_frame_that_says_too_much_is_not_believed(server: Server, new_page: NewPage) -> None:
    """Messages from elsewhere, and heights that are none."""
    page = new_page(complains=True)
    page.goto(server.url)
    write(page, "open('page.html', 'w').write('<p style=height:99999px>tall</p>')")
    page.keyboard.press("Control+Enter")
    frame = page.locator("iframe")
    frame.content_frame.get_by_text("tall").wait_for()
    said: list[Any] = page.evaluate("""() => {
        for (const data of [null, 7, {height: -5}, {height: 'x'}, {html: '<script>ran = 1</script>', ready: true}])
            postMessage(data, '*');
        return [...document.querySelectorAll('iframe')].map(one => [one.sandbox.value, one.srcdoc]);
    }""")
    assert said == [["allow-scripts", ""]] and not ran(page)
    assert frame.bounding_box()["height"] <= 600  # type: ignore[index]
