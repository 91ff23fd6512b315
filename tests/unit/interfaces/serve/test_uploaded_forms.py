"""Forms with files, as E2B's clients upload them."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request

from warmcell.interfaces.serve.e2b.envd import FORM_PIECE, _parts
from warmcell.lifetime.threads import cancel_and_wait

HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'


@pytest.mark.attack("S3-15")
async def test_other_requests_have_turns_while_a_form_is_parsed() -> None:
    """A file of 64 MiB that consists of almost-boundaries held the event loop for many seconds."""
    data, turns = b"\r\n--bx" * 100_000, 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    body = HEAD + data + b"\r\n--b--\r\n"
    request = Request({"type": "http", "headers": [(b"content-type", b"multipart/form-data; boundary=b")]})
    taking = asyncio.ensure_future(take_turns())
    try:
        assert await _parts(request, "", body) == [("f", data)]
    finally:
        await cancel_and_wait(taking)
    assert turns >= len(body) // FORM_PIECE
