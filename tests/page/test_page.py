"""The page as somebody uses it: run, watch, plot, stop, fail, come back."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.helpers import until
from tests.page.conftest import PATIENCE, NewPage, write
from tests.serve.conftest import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[2]


def test_the_built_files_are_those_of_the_sources() -> None:
    subprocess.run([sys.executable, ROOT / "scripts/build-page", "--check"], check=True)


def test_a_program_is_run_by_the_keys(server: Server, new_page: NewPage) -> None:
    page = new_page()
    page.goto(server.url)
    write(page, "import sys; print(6 * 7); print('no', file=sys.stderr); sys.exit(3)")
    page.keyboard.press("Control+Enter")
    page.get_by_text("Exit 3").wait_for()
    shown = page.get_by_role("log")
    assert shown.inner_text().split() == ["42", "no"]
    assert shown.locator(".stderr").inner_text() == "no"


def test_output_comes_as_it_is_printed_and_a_run_is_stopped(server: Server, new_page: NewPage) -> None:
    page = new_page()
    page.goto(server.url)
    write(page, "printf '\\033[31mfirst\\033[0m 10%%\\r20%%'; sleep 300", "command")
    page.keyboard.press("Control+Enter")
    page.get_by_role("log").get_by_text("20%").wait_for()
    assert page.get_by_role("log").inner_text() == "20%"  # a line that was written anew
    assert page.get_by_text("Running", exact=True).is_visible()
    page.keyboard.press("Escape")
    page.get_by_text("Stopped", exact=True).wait_for()
    assert page.get_by_role("button", name="Run").is_enabled()


def test_long_output_is_shown_from_both_ends_and_searched(server: Server, new_page: NewPage) -> None:
    page = new_page()
    page.goto(server.url)
    write(page, "for number in range(30_000): print('line', number, 'needle' if number % 29_000 == 7 else '')")
    page.keyboard.press("Control+Enter")
    page.get_by_text("Done", exact=True).wait_for()
    shown = page.get_by_role("log")
    shown.get_by_text("line 29999", exact=True).wait_for()
    lines = "log => [...log.querySelectorAll('.line')].map(line => line.textContent.trim())"
    texts = shown.evaluate(lines)
    assert len(texts) <= 5_001 and texts[0] == "line 0" and texts[999] == "line 999"
    assert texts[1000] == f"{30_000 - len(texts) + 1:,} lines in between are not shown."
    page.get_by_label("Search the output").fill("NEEDLE")
    page.get_by_text("1 of 2 lines").wait_for()
    assert page.locator(".line.current").inner_text() == "line 7 needle"
    page.keyboard.press("Enter")
    page.get_by_text("2 of 2 lines").wait_for()
    assert page.locator(".line.current").inner_text() == "line 29007 needle"


def test_pictures_and_tables_are_shown(server: Server, new_page: NewPage) -> None:
    page = new_page()
    page.goto(server.url)
    page.get_by_role("button", name="Run").click()  # the program that everybody finds first
    page.get_by_text("Done", exact=True).wait_for()
    picture = page.get_by_role("img", name="decay.svg")
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    assert page.locator(".data-table th").all_inner_texts() == ["x", "y"]
    with page.expect_download() as download:
        page.get_by_role("button", name="Download decay.csv").click()
    assert Path(download.value.path()).read_text().startswith("x,y")


def test_what_went_wrong_is_said(server: Server, new_page: NewPage) -> None:
    page = new_page(complains=True)  # of 422, on the console
    page.goto(server.url)
    write(page, "print('so far', flush=True)\nwhile True: pass")
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Time limit").fill("1")
    page.keyboard.press("Control+Enter")  # from within the field, which has not said that it changed
    page.get_by_text("Time limit", exact=True).wait_for()
    assert page.get_by_role("log").inner_text() == "so far"
    page.get_by_label("Time limit").fill("1000")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("alert").get_by_text("300").wait_for()  # what the server allows


def test_it_comes_back_with_the_server(start_server: Any, new_page: NewPage, own_port: int) -> None:
    page = new_page(complains=True)  # of connections that are refused, on the console
    port = str(own_port)
    with start_server("--port", port) as first:
        page.goto(first.url)
        write(page, "print('begun', flush=True); import time; time.sleep(300)")
        page.keyboard.press("Control+Enter")
        page.get_by_text("begun", exact=True).wait_for()
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(30)
    page.get_by_text("Reconnecting").wait_for()
    with start_server("--port", port):
        page.get_by_text("The run ended with the server").wait_for()
        assert page.get_by_role("log").inner_text() == "begun"  # earlier output is kept
        page.reload()
        page.get_by_text("The run ended with the server").wait_for()
        assert page.get_by_role("log").inner_text() == "begun"
        write(page, "print('again')")
        page.keyboard.press("Control+Enter")
        page.get_by_text("Done", exact=True).wait_for()


def test_activity_shows_what_happens(server: Server, new_page: NewPage) -> None:
    page = new_page()
    page.goto(f"{server.url}/#/activity")
    from playwright.sync_api import expect

    runs = page.locator(".tile", has_text="Runs").locator(".figure")
    runs.wait_for()
    before = runs.inner_text()
    body = {"language": "python", "code": "print(1)", "timeout": 30}
    assert server.client.post("/v1/run", json=body).status_code == 200
    expect(runs).not_to_have_text(before, timeout=PATIENCE)
    assert page.get_by_role("img", name="Runs, per second").is_visible()


def test_doctor_has_its_table(server: Server, new_page: NewPage) -> None:
    until(lambda: not server.client.get("/v1/activity").json()["runs"])  # those that other tests have stopped
    page, before = new_page(), runs_counted(server)
    page.goto(f"{server.url}/#/doctor")
    page.get_by_role("row", name="native cage").wait_for()
    assert page.get_by_role("row", name="host network").get_by_text("works").is_visible()
    assert runs_counted(server) == before, "attacks on our own cage are nobody's runs"


def runs_counted(server: Server) -> int:
    return sum(sum(step["outcomes"].values()) for step in server.client.get("/v1/history").json()["steps"])


def test_narrow_dark_and_by_the_keys_alone(server: Server, new_page: NewPage) -> None:
    page = new_page(390, 844, color_scheme="dark")
    page.goto(server.url)
    page.get_by_role("button", name="Run").wait_for()
    brightness = "parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    assert page.evaluate(brightness) < 40
    for view in ("run", "activity", "doctor"):
        page.goto(f"{server.url}/#/{view}")
        page.get_by_role("link", name=view.capitalize()).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 390, view
        assert _unnamed(page) == []
    page.keyboard.press("Control+K")
    page.get_by_role("combobox", name="Find a command").fill("colours light")
    page.get_by_role("option", name="Colours: light").wait_for()
    page.keyboard.press("Enter")
    page.locator("html[data-theme=light]").wait_for()
    assert page.evaluate(brightness) > 200


def _unnamed(page: Page) -> list[str]:
    """Buttons and fields that a screen reader could not name."""
    unnamed: list[str] = page.evaluate("""() => [...document.querySelectorAll('button, input, select, textarea, a')]
        .filter(one => one.checkVisibility() && !one.ariaLabel && !one.labels?.length && !one.innerText.trim())
        .map(one => one.outerHTML)""")
    return unnamed
