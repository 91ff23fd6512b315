"""The pattern in schemas accepts the same references as the parser."""

from __future__ import annotations

import re

import pytest

from warmcell.core.errors import InvalidRequest
from warmcell.images.references import REFERENCE_PATTERN, is_digest, parse_reference

DIGEST = f"sha256:{'a' * 64}"
VALID = (
    *("debian", "debian:12", "team/app", "a.b", "a__b-c/d", f"app@{DIGEST}", f"app:1@{DIGEST}", DIGEST, "x" * 200),
    *("localhost/app", "localhost:5000/app:1", "Registry.example/team/app", "[::1]:5000/app", "sha256:abc"),
)
INVALID = (
    *("", "A", "a:", "a/", "/a", "a//b", "a..b", "a___b", "a@sha256:0", "a:b:c", "a b", "Host/app", "x" * 201),
    *(
        "a__b.c/app",
        "a.b:c/app",
        "a.b/App",
        "[::1]:5000",
        "a:-b",
        f"{DIGEST}@{DIGEST}@",
        "\N{LATIN SMALL LETTER E WITH ACUTE}",
    ),
)


@pytest.mark.parametrize("text", VALID)
def test_both_accept(text: str) -> None:
    assert is_digest(text) or parse_reference(text)
    assert re.search(REFERENCE_PATTERN, text)


@pytest.mark.parametrize("text", INVALID)
def test_both_refuse(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_reference(text)
    assert not re.search(REFERENCE_PATTERN, text)
