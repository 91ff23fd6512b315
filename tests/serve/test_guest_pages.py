"""A forged file service that always has another page, or a very long one: lists and events of E2B's clients are bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.interfaces.serve.e2b import filesystem
from warmcell.interfaces.serve.e2b.connect import RpcError


class EndlessPages:
    """Each page has one entry or event of `size` bytes, and says that there is more."""

    def __init__(self, size: int) -> None:
        self.name, self.pages = "x" * size, 0

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.pages += 1
        assert self.pages < 200_000, "endless"
        if op == "list":
            return {"entries": [{"name": self.name}], "next": fields["offset"] + 1, "more": True}
        return {"events": [[self.name, "WRITE"]], "more": True}


def box_with(files: EndlessPages) -> Any:
    return SimpleNamespace(files=files, watchers={})


@pytest.mark.attack("S3-18")
@pytest.mark.parametrize(("size", "pages"), [(1, filesystem.MAX_ENTRIES + 2), (1 << 20, 33)])
async def test_an_endless_listing_is_refused(size: int, pages: int) -> None:
    files = EndlessPages(size)
    with pytest.raises(RpcError, match="more than"):
        await filesystem.list_dir(box_with(files), {"path": "."})
    assert files.pages <= pages


@pytest.mark.attack("S3-18")
@pytest.mark.parametrize(("size", "pages"), [(1, filesystem.MAX_EVENTS), (1 << 20, 32)])
async def test_endless_events_are_taken_in_parts(size: int, pages: int) -> None:
    files = EndlessPages(size)
    assert len(await filesystem.Watcher(box_with(files), {"path": "."}).take()) == files.pages <= pages


class LongPage(EndlessPages):
    """One page with so many rows that a line of the service can just hold them."""

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return {"entries": [{}] * 690_000, "events": [["", ""]] * 250_000, "next": 1, "more": False}


@pytest.mark.attack("S3-18")
async def test_a_page_with_too_many_rows_is_refused_before_it_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[Any] = []
    monkeypatch.setattr(filesystem, "entry", converted.append)
    with pytest.raises(RpcError, match="a page of 690000 entries"):
        await filesystem.list_dir(box_with(LongPage(0)), {"path": "."})
    assert converted == []
    with pytest.raises(RpcError, match="a page of 250000 events"):
        await filesystem.Watcher(box_with(LongPage(0)), {"path": "."}).take()
