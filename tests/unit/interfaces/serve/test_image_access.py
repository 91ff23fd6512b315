"""Images that requests name by digest: what the server reads to find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warmcell import ImageNotFound
from warmcell.images import Image, ImageStore
from warmcell.images.records import Records
from warmcell.interfaces.serve.run_places import TEMPLATE_HOST, ImageAccess
from warmcell.languages.config import ProcessConfig


def add(store: ImageStore, place: Path, name: str) -> Image:
    place.mkdir()
    (place / "file").write_text(name)
    return store.import_(place, name)


async def test_no_configuration_of_another_image_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's templates may have megabytes of variables each, and any request may name a digest."""
    store = ImageStore(tmp_path / "store")
    public = add(store, tmp_path / "public", "public:1")
    template = add(store, tmp_path / "template", f"{TEMPLATE_HOST}/tenant/build:1")
    read: list[str] = []
    real = Records.image

    def note(self: Records, digest: str) -> dict[str, Any]:
        read.append(digest)
        return real(self, digest)

    monkeypatch.setattr(Records, "image", note)
    images = ImageAccess(ProcessConfig(), store.path)
    found = await images.find(public.digest)
    assert found is not None and found.image.digest == public.digest
    for hidden in (template.digest, f"any@{template.digest}", template.name, "sha256:" + "0" * 64):
        with pytest.raises(ImageNotFound):
            await images.find(hidden)
    assert read == [public.digest]
    store.tag(template.name, "shown:1")
    assert store.names_of(template.digest) == ("shown:1", template.name)
    assert await images.find(template.digest) is not None
