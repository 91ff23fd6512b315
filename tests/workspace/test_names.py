"""Texts of paths: what is a name inside, and what is refused before anything is opened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import PathTraversal
from warmcell.workspace.names import printable, split_guest_absolute, split_relative


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ("a",)),
        ("a/b", ("a", "b")),
        ("./a//b/", ("a", "b")),
        (".", ()),
        ("...", ("...",)),
        ("..a", ("..a",)),
        ("-rf", ("-rf",)),
        ("new\nline", ("new\nline",)),
        ("\u202egpj.exe", ("\u202egpj.exe",)),
        ("\uff0e\uff0e\uff0fx", ("\uff0e\uff0e\uff0fx",)),
        ("~lock", ("~lock",)),
        ("%2e%2e/x", ("%2e%2e", "x")),
        ("x" * 255, ("x" * 255,)),
    ],
)
def test_a_relative_path_becomes_its_names(text: str, parts: tuple[str, ...]) -> None:
    assert split_relative(text) == parts


REFUSED = [
    "",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    "/etc/passwd",
    "//x",
    "~",
    "~/x",
    "~root/x",
    "C:\\x",
    "C:/x",
    "c:x",
    "a\\b",
    "..\\x",
    "a/..\\..\\x",
    "\\\\server\\share",
    "a\0b",
    "x" * 5000,
    "a/" * 2500,
    "é" * 2100,
    "y" * 256,
    "é" * 128,
    "\ud800",
    "a/\udcff",
]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text)[:24])
def test_what_leads_elsewhere_or_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(PathTraversal) as caught:
        split_relative(text)
    str(caught.value).encode()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [None, 3, b"bytes", ["a"]])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(PathTraversal):
        split_relative(value)  # type: ignore[arg-type]


def test_a_guest_path_must_be_absolute() -> None:
    assert split_guest_absolute("/work/a") == ("work", "a")
    for text in ("work/a", "/work/../etc", "/C:/x", "/a\\b"):
        with pytest.raises(PathTraversal):
            split_guest_absolute(text)


@given(st.text(st.sampled_from("ab./\\~:\0-é\ud800"), max_size=12))
def test_no_accepted_path_holds_a_way_out(text: str) -> None:
    try:
        parts = split_relative(text)
    except PathTraversal:
        return
    assert not text.startswith("/")
    assert all(part not in ("", ".", "..") and "/" not in part and "\0" not in part for part in parts)


@given(st.binary(min_size=1, max_size=40).filter(lambda raw: b"\0" not in raw and b"/" not in raw))
def test_every_name_that_a_file_system_gives_can_be_shown(raw: bytes) -> None:
    import os

    printable(os.fsdecode(raw)).encode()
