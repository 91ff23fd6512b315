"""Trees of directories that are larger than a response may be."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmcell.interfaces.serve.e2b.connect import RpcError
from warmcell.interfaces.serve.e2b.filesystem import list_dir
from warmcell.interfaces.serve.v1.files import MAX_DEPTH, _below
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.files import MAX_LIST_ENTRIES, DirEntry


class EndlessSandbox:
    """Each of its directories has a thousand others."""

    def __init__(self) -> None:
        self.listed = 0

    async def list_dir(self, path: str) -> list[DirEntry]:
        self.listed += 1
        return [DirEntry(str(number), True, False, 0) for number in range(1000)]


@pytest.mark.attack("S3-18")
async def test_a_tree_is_not_read_past_its_limit() -> None:
    """The names of a whole level were in memory before they were counted: up to a hundred million."""
    sandbox = EndlessSandbox()
    with pytest.raises(LimitExceeded):
        await _below(cast(Any, sandbox), ".", MAX_DEPTH)
    assert sandbox.listed <= MAX_LIST_ENTRIES // 1000 + 1


def box_of(count: int, name: str = "") -> Any:
    """A sandbox whose file service lists so many files, a thousand at a time."""

    async def ask(op: str, *, offset: int, **_: Any) -> dict[str, Any]:
        rows = [{"name": f"{name}{number}"} for number in range(offset, min(count, offset + 1000))]
        return {"entries": rows, "next": offset + 1000, "more": offset + 1000 < count}

    return SimpleNamespace(files=SimpleNamespace(ask=ask))


@pytest.mark.attack("S3-17")
@pytest.mark.parametrize("count", [0, 1, 1000, 20_001])
async def test_a_large_directory_is_encoded_in_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON of 100,000 entries held up the event loop for a second."""
    sizes, dumps = [0], json.dumps

    def record(value: Any, **options: Any) -> str:
        text = dumps(value, **options)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(json, "dumps", record)
    response = await list_dir(box_of(count), {"path": "/"})
    found = json.loads(bytes(response.body))["entries"]
    assert [each["name"] for each in found] == [str(number) for number in range(count)]
    assert max(sizes) < 1 << 20


@pytest.mark.attack("S3-18")
async def test_the_list_of_a_directory_is_bounded() -> None:
    with pytest.raises(RpcError, match="list less"):
        await list_dir(box_of(20_001, "\u00e9" * 1000), {"path": "/"})
    with pytest.raises(RpcError, match="list less"):
        await list_dir(box_of(101_001), {"path": "/"})
