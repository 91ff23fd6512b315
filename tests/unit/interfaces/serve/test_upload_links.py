"""Signed URLs for the archives of a template's build."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from warmcell.core.records import replace
from warmcell.interfaces.serve.e2b import control, templates
from warmcell.interfaces.serve.e2b.template_records import UPLOAD_SECONDS, Uploads
from warmcell.interfaces.serve.requests import MORE_BODY_SECONDS
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.service import LOCAL_TENANT

DIGEST = "f" * 64


async def test_an_upload_link_ends_with_the_token_of_its_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was good for an hour after the token was revoked."""
    uploads, tenants = Uploads(str(tmp_path)), {LOCAL_TENANT.id: LOCAL_TENANT}

    async def stream() -> AsyncIterator[bytes]:
        yield b"archive"

    service = SimpleNamespace(find_tenant_by_id=tenants.get)
    asked = dict(parse_qsl(urlsplit(uploads.sign(LOCAL_TENANT.id, DIGEST, 100)).query))
    request: Any = SimpleNamespace(
        app=SimpleNamespace(state=SimpleNamespace(service=service)),
        path_params={"owner": LOCAL_TENANT.id, "hash": DIGEST},
        query_params=asked,
        stream=stream,
        scope={},
    )
    monkeypatch.setattr(templates, "builds_of", lambda service: SimpleNamespace(uploads=uploads))
    assert templates.uploader_of(request) is LOCAL_TENANT
    assert (await templates.upload(request, LOCAL_TENANT)).status_code == 200
    assert request.scope == {MORE_BODY_SECONDS: UPLOAD_SECONDS}, "the connection was closed after 75 s"
    assert Path(uploads.path_of(LOCAL_TENANT.id, DIGEST)).read_bytes() == b"archive"
    for left in (replace(LOCAL_TENANT, scopes=("run",)), None):
        tenants.clear()
        if left is not None:
            tenants[left.id] = left
        with pytest.raises(HttpError) as refused:
            templates.uploader_of(request)
        assert refused.value.status == 403


def test_an_upload_counts_for_the_tenant_of_its_link() -> None:
    """It counted for no tenant: any number could go on at a time, each for a quarter of an hour."""
    (made,) = [route for route in control.routes() if route.path.startswith("/templates/uploads/")]
    assert made.has_own_secret and made.description["scope"] is None


async def test_archives_that_arrive_together_take_no_more_than_one_may(tmp_path: Path) -> None:
    """Each had a draft of the whole size, for as many connections as a client opened with one URL."""
    uploads, is_there, may_end = Uploads(str(tmp_path)), asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 60
        is_there.set()
        await may_end.wait()

    async def fast(size: int) -> AsyncIterator[bytes]:
        yield b"y" * size

    archive = Path(uploads.path_of("tenant", DIGEST))
    first = asyncio.ensure_future(uploads.receive("tenant", DIGEST, 100, slow()))
    await is_there.wait()
    with pytest.raises(HttpError) as refused:
        await uploads.receive("tenant", "a" * 64, 100, fast(60))
    assert refused.value.status == 429 and len(list(archive.parent.iterdir())) == 1
    await uploads.receive("other", "a" * 64, 100, fast(60))
    may_end.set()
    await first
    assert archive.read_bytes() == b"x" * 60
    await uploads.receive("tenant", "a" * 64, 100, fast(60))


async def test_no_room_is_made_at_the_expense_of_an_archive_that_arrives(tmp_path: Path) -> None:
    """Its draft was the oldest file: it was removed, and its client got an internal error."""
    uploads, is_there, may_end = Uploads(str(tmp_path)), asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(5 << 20)
        is_there.set()
        await may_end.wait()
        yield b"end"

    async def fast() -> AsyncIterator[bytes]:
        yield bytes(4 << 20)

    archive = Path(uploads.path_of("tenant", DIGEST))
    first = asyncio.ensure_future(uploads.receive("tenant", DIGEST, 10 << 20, slow()))
    await is_there.wait()
    (draft,) = archive.parent.iterdir()
    os.utime(draft, (1, 1))
    for digest in ("a" * 64, "b" * 64):
        await uploads.receive("tenant", digest, 10 << 20, fast())
        os.utime(uploads.path_of("tenant", digest), (2, 2))  # else all may have the time of one tick of the clock
    may_end.set()
    await first
    assert archive.stat().st_size == (5 << 20) + 3


async def test_empty_archives_are_bounded_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client could leave a million of them, and each upload looked at all in the event loop."""
    monkeypatch.setattr("warmcell.interfaces.serve.e2b.template_records.MAX_ARCHIVES", 2)
    uploads = Uploads(str(tmp_path))

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    for number in range(4):
        await uploads.receive("tenant", str(number) * 64, 100, nothing())
        os.utime(uploads.path_of("tenant", str(number) * 64), (number, number))
    left = sorted(path.name[0] for path in Path(uploads.path_of("tenant", "a" * 64)).parent.iterdir())
    assert left == ["2", "3"]
