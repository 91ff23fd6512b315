"""A reloaded page, and a restarted server: programs, cells, shells and their output are found again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from tests.page.conftest import NewPage, run_cell, write
from tests.serve.conftest import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: Runs until it is stopped.
WAITING = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)"


def make_sandbox(server: Server) -> str:
    made: str = server.client.post("/v1/sandboxes", json={}).json()["id"]
    return made


def cell(page: Page, number: int) -> Any:
    return page.get_by_role("article", name=f"Cell {number}")


def test_a_running_program_is_found_again_and_stopped(server: Server, new_page: NewPage) -> None:
    page = new_page()
    page.goto(server.url)
    write(page, WAITING)
    page.keyboard.press("Control+Enter")
    page.get_by_role("log").get_by_text("begun").wait_for()
    with page.expect_response("**/v1/runs/*/events*"):  # the saved output is replaced by that of the server
        page.reload()
    page.get_by_role("log").get_by_text("begun").wait_for()
    assert page.get_by_text("Running", exact=True).is_visible()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped", exact=True).wait_for()
    page.reload()
    page.get_by_text("Stopped", exact=True).wait_for()
    assert page.get_by_role("log").inner_text() == "begun"


def test_cells_are_found_again_with_their_session(server: Server, new_page: NewPage) -> None:
    page, made = new_page(), make_sandbox(server)
    page.goto(f"{server.url}/#/sandboxes/{made}")
    page.get_by_text("The first cell starts a session").wait_for()
    run_cell(page, 1, "x = 6\nprint('printed')")
    page.get_by_text("Variables stay").wait_for()
    run_cell(page, 2, "name = input('who? ')\nprint(name, x * 7)", until="Answer")
    page.reload()
    assert "printed" in cell(page, 1).inner_text()
    page.get_by_text("Variables stay").wait_for()
    page.get_by_label("who?").fill("Ada")
    page.get_by_role("button", name="Answer").click()
    cell(page, 2).get_by_text("Ada 42").wait_for()
    cell(page, 2).get_by_text("Done in").wait_for()
    page.get_by_role("button", name="Restart").click()
    page.get_by_text("variables of earlier cells are gone").wait_for()
    run_cell(page, 3, "x", until="Raised in")
    cell(page, 3).get_by_text("NameError").first.wait_for()
    page.close()
    server.client.delete(f"/v1/sandboxes/{made}")


def test_cells_outlive_the_server(start_server: Any, new_page: NewPage, own_port: int) -> None:
    page = new_page(complains=True)  # of connections that are refused, on the console
    with start_server("--port", str(own_port)) as first:
        made = make_sandbox(first)
        page.goto(f"{first.url}/#/sandboxes/{made}")
        run_cell(page, 1, "x = 6\nprint('printed')")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(30)
    page.get_by_text("Reconnecting").wait_for()
    with start_server("--port", str(own_port)):
        page.get_by_text("This sandbox has ended").wait_for()
        page.reload()
        page.get_by_text("This sandbox has ended").wait_for()
        assert "printed" in cell(page, 1).inner_text()
        assert page.get_by_role("button", name="Run cell 1").is_disabled()
        page.get_by_role("button", name="Continue in a new sandbox").click()
        page.get_by_text("variables of earlier cells are gone").wait_for()
        assert "printed" in cell(page, 1).inner_text()
        page.get_by_role("button", name="Run cell 1").click()
        page.get_by_text("Variables stay").wait_for()
        run_cell(page, 2, "x * 7")
        cell(page, 2).get_by_text("42").wait_for()


def test_shells_have_names_and_are_found_by_them(server: Server, new_page: NewPage) -> None:
    page, made = new_page(), make_sandbox(server)
    page.goto(f"{server.url}/#/sandboxes/{made}/terminal")
    shells = page.get_by_role("group", name="Shells")
    shells.get_by_role("button", name="Shell 1").wait_for()
    page.locator(".screen.connected").wait_for()
    page.get_by_role("button", name="New shell").click()
    shells.get_by_role("button", name="Shell 2", pressed=True).wait_for()
    page.locator(".screen.connected").wait_for()
    page.keyboard.type("echo sec''ond\n")
    page.locator(".xterm-rows").get_by_text("second").first.wait_for()
    other = new_page()  # another tab knows nothing but the server's list
    other.goto(f"{server.url}/#/sandboxes/{made}/terminal")
    for one in (page, other):
        shells = one.get_by_role("group", name="Shells")
        shells.get_by_role("button", name="Shell 1").click()
        one.locator(".screen.connected").wait_for()
        shells.get_by_role("button", name="Shell 2").click()
        one.locator(".xterm-rows").get_by_text("second").first.wait_for()
    page.get_by_role("link", name="Processes").click()
    page.get_by_text("Shell 2 of the terminal").wait_for()
    page.close()
    other.close()
    server.client.delete(f"/v1/sandboxes/{made}")


def test_files_follow_what_happens_in_the_sandbox(server: Server, new_page: NewPage) -> None:
    page = new_page(complains=True)  # a change may be noticed when the file is already deleted
    made = make_sandbox(server)
    at = f"/v1/sandboxes/{made}"
    page.goto(f"{server.url}/#/sandboxes/{made}/files")
    page.get_by_text("The work directory is empty").wait_for()
    server.client.put(f"{at}/files/a.txt", content="one").raise_for_status()
    page.get_by_role("button", name="a.txt").click()
    content = page.get_by_role("textbox", name="Content of a.txt")
    content.get_by_text("one").wait_for()
    server.client.put(f"{at}/files/a.txt", content="two").raise_for_status()  # of the same size
    content.get_by_text("two").wait_for()
    server.client.delete(f"{at}/files/a.txt").raise_for_status()
    page.get_by_text("The work directory is empty").wait_for()
    page.close()
    server.client.delete(at)
