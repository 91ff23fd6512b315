"""A sandbox on the page: cells that remember, files, a terminal, processes, ports, and its end."""

from __future__ import annotations

from typing import Any

import httpx
from tests.page.conftest import NewPage, run_cell
from tests.serve.conftest import Server

PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><circle cx="4" cy="4" r="3"/></svg>'
#: What the bar of an upload showed, for as long as it was there.
SHARES_SEEN = """() => {
    window.shares = [];
    new MutationObserver(() => {
        const bar = document.querySelector("progress[aria-label='Uploading sent.bin']");
        if (bar) window.shares.push(bar.value);
    }).observe(document.body, { subtree: true, childList: true, attributes: true });
}"""
SERVER = "python3 -u -m http.server 8000 --bind 127.0.0.1 & read line; echo got $line; wait"


def test_a_sandbox_from_its_beginning_to_its_end(server: Server, new_page: NewPage) -> None:
    page = new_page()
    page.goto(f"{server.url}/#/sandboxes")
    page.get_by_label("Name of the new sandbox").fill("mine")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="mine").wait_for()

    run_cell(page, 1, f"x = 6\nopen('dot.svg', 'w').write({PICTURE!r})\nprint('printed')")
    run_cell(page, 2, "x * 7")
    assert "42" in page.get_by_role("article", name="Cell 2").inner_text()
    run_cell(page, 3, "print('be' 'gun', flush=True)\nwhile True: pass", until="begun")
    page.keyboard.press("Escape")
    page.get_by_role("article", name="Cell 3").get_by_text("KeyboardInterrupt").first.wait_for()

    page.get_by_role("link", name="Files").click()
    page.get_by_role("button", name="dot.svg created").click()
    assert page.get_by_role("img", name="dot.svg").evaluate("image => image.decode().then(() => true)")
    upload = page.get_by_label("Upload files")
    upload.evaluate(SHARES_SEEN)
    upload.set_input_files({"name": "sent.bin", "mimeType": "text/plain", "buffer": bytes(3_000_000)})
    page.get_by_role("button", name="sent.bin created").wait_for()
    assert page.evaluate("window.shares.length > 0 && window.shares.every(share => share >= 0 && share <= 1)")

    page.get_by_role("link", name="Cells").click()
    page.get_by_role("button", name="Install", exact=True).click()
    page.route("**/install", lambda route: route.fulfill(status=204))  # there is no index here
    page.get_by_label("Names of packages").fill("one two")
    with page.expect_request("**/install") as asked:
        page.keyboard.press("Enter")
    assert asked.value.post_data_json == {"packages": ["one", "two"], "manager": "pip"}
    page.get_by_text("one, two: installed.").wait_for()
    page.get_by_role("button", name="Close").click()

    page.get_by_role("link", name="Processes").click()
    page.get_by_label("Command to start").fill(SERVER)
    page.keyboard.press("Enter")
    page.get_by_label("Write to the process").fill("a line")
    page.keyboard.press("Enter")
    page.get_by_text("got a line", exact=True).wait_for()
    page.get_by_text("Serving HTTP").wait_for()

    page.get_by_role("link", name="Ports").click()
    page.get_by_role("button", name="Expose").click()
    link = page.get_by_role("link", name="Port 8000")
    assert httpx.get(f"{link.get_attribute('href')}/dot.svg", trust_env=False, timeout=60).text == PICTURE
    assert link.get_attribute("rel") == "noopener noreferrer"

    page.get_by_role("button", name="Destroy").click()
    page.get_by_role("dialog").get_by_role("button", name="Destroy").click()
    page.get_by_text("No sandbox yet").wait_for()
    assert server.client.get("/v1/sandboxes").json() == []


def test_what_changed_is_shown_line_by_line(server: Server, new_page: NewPage) -> None:
    made = server.client.post("/v1/sandboxes", json={}).json()["id"]
    at = f"/v1/sandboxes/{made}"
    lines = [f"line {number}\n" for number in range(1, 41)]
    for path, content in (("a.txt", "".join(lines)), ("b.txt", "only\n")):
        server.client.put(f"{at}/files/{path}", content=content).raise_for_status()
    server.client.post(f"{at}/mark").raise_for_status()
    changed = ["first\n", *lines[:9], "tenth <b>\n", *lines[10:29], *lines[30:]]
    server.client.put(f"{at}/files/a.txt", content="".join(changed)).raise_for_status()
    server.client.delete(f"{at}/files/b.txt").raise_for_status()

    page = new_page()
    page.goto(f"{server.url}/#/sandboxes/{made}/files")
    page.get_by_role("button", name="a.txt modified").click()
    page.get_by_role("region", name="Changed lines of a.txt").wait_for()
    cells = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    assert page.locator(".diff tr:not(.same)").evaluate_all(cells) == [
        ["", "1", "+", "added: first"],
        ["10", "", "−", "removed: line 10"],
        ["", "11", "+", "added: tenth <b>"],
        ["30", "", "−", "removed: line 30"],
    ]
    assert page.locator(".diff table").count() == 3 and page.locator(".diff tr").count() == 4 + 3 + 6 + 6
    page.get_by_role("button", name="b.txt deleted").click()
    page.get_by_role("region", name="Changed lines of b.txt").get_by_text("only").wait_for()
    page.get_by_role("button", name="Mark as seen").click()
    page.get_by_role("button", name="a.txt").and_(page.locator(":not(:has(.change))")).wait_for()
    assert server.client.get(f"{at}/diff").json() == []
    server.client.delete(at).raise_for_status()


def test_a_shell_on_a_terminal(start_server: Any, new_page: NewPage) -> None:
    """Keys, Ctrl-C and sizes reach the shell, colours of programs are drawn, and it is found again after a reload."""
    with start_server("--token", "a-token") as server:
        page = new_page()
        page.add_init_script("sessionStorage.setItem('warmcell.token', 'a-token')")
        server.client.headers["Authorization"] = "Bearer a-token"
        made = server.client.post("/v1/sandboxes", json={}).json()["id"]
        page.goto(f"{server.url}/#/sandboxes/{made}/terminal")
        rows = page.locator(".xterm-rows")
        page.locator(".screen.connected").wait_for()

        def typed(text: str, until: str) -> None:
            page.keyboard.insert_text(text)
            page.keyboard.press("Enter")
            rows.get_by_text(until).first.wait_for()

        typed("stty size | tr ' ' x; echo $((6*7))here", "42here")
        columns = int(rows.inner_text().split("42here")[0].split()[-1].split("x")[1])
        typed("printf '\\033[38;2;1;200;3mgre''en\\033[0m\\n'", "green")
        assert rows.locator("span", has_text="green").last.evaluate("e => e.style.color")
        typed("sleep 600 | echo be''gun", "begun")
        page.keyboard.press("Control+c")
        typed("echo out''lived", "outlived")
        page.set_viewport_size({"width": 700, "height": 800})  # which the shell hears of some time later
        typed(f"until [ $(stty size | cut -d' ' -f2) -lt {columns} ]; do sleep 0.1; done; echo smal''ler", "smaller")
        page.get_by_role("button", name="Screen reader").click()
        page.locator(".xterm-accessibility").get_by_text("smaller").first.wait_for()

        page.reload()
        page.locator(".screen.connected").wait_for()
        page.locator(".xterm-accessibility").get_by_text("smaller").first.wait_for()
        page.keyboard.type("exit 3\n")
        page.get_by_text("ended with exit code 3").wait_for()
        page.close()
