"""Who may see more than a sign-in: tokens, and the code that `--open` gives to one browser."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.page.conftest import NewPage

TOKEN = "a token of the test's own"


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the browser that the command starts writes down its address: it is no browser."""
    address, browser = tmp_path / "address", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {address}.new; mv {address}.new {address}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    return address


def test_the_page_asks_for_a_token_unless_it_was_opened(start_server: Any, new_page: NewPage, opened: Path) -> None:
    with start_server("--token", TOKEN, "--open") as server:
        address = _content(opened)
        assert address.startswith(f"{server.url}/#code=") and TOKEN not in address
        page = new_page()
        page.goto(address)
        page.get_by_role("button", name="Run").wait_for()
        assert "code" not in page.url

        page = new_page(complains=True)  # of 403 and 401, on the console
        page.goto(address)  # which works once
        field = page.get_by_label("Token")
        field.fill("a wrong one")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("not accepted").wait_for()
        field.fill(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Run").wait_for()
        assert page.context.cookies() == []
        assert page.evaluate("Object.keys(localStorage)") == []


def _content(path: Path) -> str:
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return path.read_text()


def test_a_code_works_once_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    from warmcell.interfaces.serve.responses import HttpError
    from warmcell.interfaces.serve.settings import Settings
    from warmcell.interfaces.serve.sign_in import CODE_SECONDS, new_code, redeem_code

    def is_redeemed(service: Any, text: str) -> bool:
        try:
            return redeem_code(service, text) == TOKEN
        except HttpError:
            return False

    code = new_code()
    service, late, none = (
        SimpleNamespace(settings=Settings(token=TOKEN, code=held), sign_in_code_used=False)
        for held in (code, code, None)
    )
    tried = [is_redeemed(service, text) for text in ("", "\ud800", code[:-1], code, code)]
    assert tried == [False, False, False, True, False]
    assert not is_redeemed(none, "")
    later = time.time() + CODE_SECONDS + 2
    monkeypatch.setattr(time, "time", lambda: later)
    assert not is_redeemed(late, code)


def test_the_address_has_the_code_only_where_nobody_listens() -> None:
    from warmcell.interfaces.serve.settings import Settings
    from warmcell.interfaces.serve.sign_in import address_to_open

    there = {
        ("127.0.0.1", None): "http://127.0.0.1:8",
        ("127.0.0.1", TOKEN): "http://127.0.0.1:8/#code=c",
        ("0.0.0.0", TOKEN): "http://127.0.0.1:8/",
    }
    for (host, token), address in there.items():
        assert address_to_open(Settings(host=host, token=token, code="c"), f"http://{host}:8") == address
