"""Trees of directories that are larger than a response may be."""

from __future__ import annotations

from typing import Any, cast

import pytest

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
