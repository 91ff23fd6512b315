"""Volumes of tokens that were revoked together: one that cannot be removed is no reason to keep the others.

A token that lost the scope `sandbox` keeps its volumes, and cannot use them.
"""

from __future__ import annotations

import errno
from pathlib import Path

import httpx
import pytest

from warmcell.core.records import replace
from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.e2b import volumes as volumes_module
from warmcell.interfaces.serve.e2b.volumes import volumes_of
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import add_token
from warmcell.workspace.remove import remove_directory


async def test_a_volume_that_cannot_be_removed_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets of the others stayed valid, and what other protocols keep for revoked tokens stayed too."""
    file = str(tmp_path / "tokens.json")
    tenants = [add_token(file, name)[1] for name in ("one", "two", "three")]
    service = Service(Settings(tokens=file))
    volumes = volumes_of(service)
    made = [await volumes.create(tenant, "data") for tenant in tenants]
    noted: list[set[str]] = []

    async def note(revoked: set[str]) -> None:
        noted.append(revoked)

    def remove(path: str) -> None:
        if path == made[0].path:  # a request has just written to it
            raise OSError(errno.ENOTEMPTY, "rmdir")
        remove_directory(path)

    service.on_revoked.append(note)
    monkeypatch.setattr(volumes_module, "remove_directory", remove)
    service._tenants = (tenants[2],)
    await service.end_revoked()
    assert [volumes.find_any(volume.id) for volume in made] == [None, None, made[2]]
    assert not Path(made[1].path).exists() and noted == [{tenants[0].id, tenants[1].id}]
    await service.aclose()


async def test_the_secret_of_a_volume_needs_the_scope_of_its_token(tmp_path: Path) -> None:
    """A token without the scope got 403 for its volumes, and read and wrote their files with their secrets."""
    file = str(tmp_path / "tokens.json")
    tenant = add_token(file, "one", scopes=("run", "sandbox"))[1]
    service = Service(Settings(tokens=file))
    volume = await volumes_of(service).create(tenant, "data")
    transport = httpx.ASGITransport(make_app(service))
    place = f"/volumecontent/{volume.id}"
    statuses = []
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            client.headers["Authorization"] = f"Bearer {volume.token}"
            for scopes in (("run", "sandbox"), ("run",), ("run", "sandbox")):
                service._tenants = (replace(tenant, scopes=scopes),)
                listed = await client.get(f"{place}/dir")
                written = await client.put(f"{place}/file", params={"path": "x", "force": "true"}, content=b"x")
                statuses.append((listed.status_code, written.status_code))
    finally:
        await service.aclose()
    assert statuses == [(200, 201), (404, 404), (200, 201)]
