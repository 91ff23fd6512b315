"""Which host directories a container may write to, under a policy with paths inside paths."""

from __future__ import annotations

import pytest

from warmcell.interfaces.docker.engine import may_write
from warmcell.policy.model import AccessMode

PATHS = [
    ("/a", AccessMode.READ_WRITE),
    ("/a/fixed", AccessMode.READ_ONLY),
    ("/a/fixed/open", AccessMode.READ_WRITE),
    ("/b", AccessMode.READ_ONLY),
    ("/b/open", AccessMode.READ_WRITE),
]


@pytest.mark.parametrize(
    ("real", "expected"),
    [
        ("/a", False),  # /a/fixed is inside
        ("/a/x", True),
        ("/a/fixed", False),
        ("/a/fixed/x", False),
        ("/a/fixed/open", True),
        ("/b", False),
        ("/b/open/x", True),
        ("/c", False),
    ],
)
def test_the_nearest_path_decides_and_none_inside_is_opened(real: str, expected: bool) -> None:
    assert may_write(real, PATHS) is expected
