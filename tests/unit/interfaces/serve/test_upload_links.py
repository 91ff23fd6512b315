"""Signed URLs for the archives of a template's build."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from warmcell.interfaces.serve.e2b import templates
from warmcell.interfaces.serve.e2b.template_records import Uploads
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
    )
    monkeypatch.setattr(templates, "builds_of", lambda service: SimpleNamespace(uploads=uploads))
    assert (await templates.upload(request, LOCAL_TENANT)).status_code == 200
    archive = Path(uploads.path_of(LOCAL_TENANT.id, DIGEST))
    archive.unlink()
    tenants.clear()
    with pytest.raises(HttpError) as refused:
        await templates.upload(request, LOCAL_TENANT)
    assert refused.value.status == 403 and not archive.exists()
