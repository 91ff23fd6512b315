"""A watched file is read after every change, whatever an earlier reading raised."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import PATIENCE, until_async

from warmcell.interfaces.serve import listener
from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.listener import reload_certificate, reload_on_change
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import add_token, identify_file, remove_token
from warmcell.lifetime.threads import cancel_and_wait


async def test_a_reading_that_fails_is_not_the_last(tmp_path: Path) -> None:
    """With `"scopes": null` in the token file it was: tokens that were revoked later stayed valid."""
    file, read = tmp_path / "tokens.json", [""]

    def write(text: str) -> None:
        draft = tmp_path / "new"
        draft.write_text(text)
        draft.replace(file)

    def reload() -> None:
        read.append(file.read_text())
        raise TypeError("'NoneType' object is not iterable")

    write("1")
    watching = asyncio.ensure_future(reload_on_change(str(file), reload))
    await asyncio.sleep(0)  # it has looked at the file
    for text in ("22", "333"):
        write(text)
        while read[-1] != text and not watching.done():
            await asyncio.sleep(0.05)
    assert read == ["", "22", "333"]
    await cancel_and_wait(watching)


async def test_a_change_before_the_watch_begins_is_read(tmp_path: Path) -> None:
    """A token that was revoked while the server started stayed valid until the next change."""
    file, was_read = tmp_path / "tokens.json", asyncio.Event()
    file.write_text("1")
    known = identify_file(str(file))
    file.write_text("22")
    watching = asyncio.ensure_future(reload_on_change(str(file), was_read.set, known))
    async with asyncio.timeout(PATIENCE):
        await was_read.wait()
    await cancel_and_wait(watching)


async def test_a_certificate_that_is_replaced_before_the_watch_begins_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous one was used until the next change, which may be after it has expired."""
    loaded: list[tuple[str, ...]] = []
    context: Any = SimpleNamespace(load_cert_chain=lambda *paths: loaded.append(paths))
    monkeypatch.setattr(listener, "make_tls_context", lambda _: None)
    watching = asyncio.ensure_future(reload_certificate(context, Settings(tls_cert="cert.pem", tls_key="key.pem")))
    await until_async(lambda: loaded)
    assert loaded == [("cert.pem", "key.pem")]
    await cancel_and_wait(watching)


async def test_a_token_that_is_revoked_after_it_was_read_is_forgotten(tmp_path: Path) -> None:
    """Also before the application has started: the service has the identity of the file from before it read it."""
    file = str(tmp_path / "tokens.json")
    token, _ = add_token(file, "one")
    service = Service(Settings(tokens=file))
    assert service.tenant(token) is not None
    remove_token(file, "one")
    app = make_app(service)
    async with app.router.lifespan_context(app):
        await until_async(lambda: service.tenant(token) is None)
