"""Volumes of tokens that were revoked together: one that cannot be removed is no reason to keep the others."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

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
