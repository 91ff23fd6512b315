"""What a token may see: views, its name, sign-out, and an operator's views of everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.page.conftest import NewPage
from tests.serve.conftest import make_token

from warmcell.interfaces.serve.tokens import SCOPES

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONG = {"language": "python", "code": "import time; time.sleep(300)", "timeout": 300}


def sign_in(page: Page, url: str, token: str) -> None:
    page.goto(url)
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("navigation", name="Views").wait_for()


def views(page: Page) -> list[str]:
    found: list[str] = page.get_by_role("navigation", name="Views").get_by_role("link").all_inner_texts()
    return found


def test_views_that_a_token_may_not_see_are_absent(start_server: Any, new_page: NewPage, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    narrow = make_token(file, "narrow", "--scope", "sandbox")
    with start_server("--tokens", str(file)) as server:
        page = new_page(complains=True)  # of the 401 before the sign-in
        sign_in(page, server.url, narrow)
        page.get_by_role("heading", name="Sandboxes").wait_for()
        assert views(page) == ["Sandboxes", "Usage"]
        page.goto(f"{server.url}/#/activity")
        page.get_by_role("heading", name="Sandboxes").wait_for()  # and not a refusal
        page.get_by_role("button", name="Signed in as narrow").click()
        page.get_by_label("Token").wait_for()
        assert page.evaluate("sessionStorage.length") == 0
        assert page.get_by_role("alert").count() == 0


def test_an_operator_sees_everything_and_ends_it(start_server: Any, new_page: NewPage, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    every = [word for scope in SCOPES for word in ("--scope", scope)]
    operator, other = make_token(file, "operator", *every), make_token(file, "other")
    with start_server("--tokens", str(file), "--audit", str(tmp_path / "audit")) as server:
        client, headers = server.client, {"x-api-key": other}
        client.post("/v1/runs", json=LONG, headers=headers).raise_for_status()
        sandbox = client.post("/v1/sandboxes", json={}, headers=headers).json()["id"]
        page = new_page(complains=True)
        sign_in(page, server.url, operator)
        assert views(page) == ["Run", "Sandboxes", "Activity", "Usage", "Audit", "Doctor"]

        page.get_by_role("link", name="Activity").click()
        page.get_by_role("button", name="End python").click()
        page.get_by_role("dialog").get_by_role("button", name="End", exact=True).click()
        page.get_by_role("button", name=f"End sandbox {sandbox[:16]}").click()
        page.get_by_role("dialog").get_by_role("button", name="End", exact=True).click()
        page.get_by_text("Nothing runs, and there is no sandbox").wait_for()
        assert client.get(f"/v1/sandboxes/{sandbox}", headers=headers).status_code == 404

        page.get_by_role("link", name="Audit").click()
        page.get_by_label("Kind of record").select_option("request")
        page.get_by_label("Search the audit").fill("/v1/activity/sandboxes")
        page.get_by_role("row").get_by_text("DELETE · /v1/activity/sandboxes").first.wait_for()
        assert "/v1/runs" not in page.get_by_role("table").inner_text()

        page.get_by_role("link", name="Usage").click()
        page.get_by_role("rowheader", name="operator").wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        assert Path(download.value.path()).read_text().startswith("tenant,sandbox,requests,runs")


def test_the_usage_view_shows_network_and_stored_bytes(server: Any, new_page: NewPage) -> None:
    names = ("requests", "runs", "cpu_seconds", "memory_gib_seconds", "wall_seconds")
    row = {"tenant": "team", "sandbox": "0123456789abcdef", **dict.fromkeys(names, 1)}
    row |= {"egress_sent_bytes": 700, "egress_received_bytes": 5 << 20, "stored_bytes": 30 << 10}
    page = new_page()
    page.route("**/v1/usage", lambda route: route.fulfill(json={"usage": [row, row | {"sandbox": ""}]}))
    page.goto(f"{server.url}/#/usage")
    shown = page.get_by_role("table").get_by_role("row")
    shown.nth(2).wait_for()
    assert shown.nth(0).get_by_role("columnheader").all_inner_texts()[-3:] == [
        *("Network sent", "Network received", "Stored now"),
    ]
    assert shown.nth(1).get_by_role("cell").all_inner_texts()[-3:] == ["700 B", "5.0 MB", "30 kB"]
    tiles = page.locator(".tile").all_inner_texts()
    assert [text.split("\n") for text in tiles[-3:]] == [
        *(["Network sent", "1.4 kB"], ["Network received", "10 MB"], ["Stored now", "60 kB"]),
    ]
