"""Plain paths: whatever a server does to one before it uses it, it stays where the rule said."""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Callable
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warmcell.net.rules.urls import is_plain, normal_path

#: What servers, frameworks and file systems are known to do.
HABITS: dict[str, Callable[[str], str]] = {
    "decodes": unquote,
    "decodes overlong forms": lambda path: path.replace("%c0%ae", ".").replace("%C0%AE", ".").replace("%c0%af", "/"),
    "decodes %u": lambda path: path.replace("%u002e", ".").replace("%u002f", "/").replace("%u2215", "/"),
    "folds Unicode": lambda path: unicodedata.normalize("NFKC", path),
    "drops parameters": lambda path: "/".join(name.partition(";")[0] for name in path.split("/")),
    "drops blanks and dots at the end": lambda path: "/".join(
        name if name in (".", "..") else name.rstrip(" ").rstrip(".") or (".." if name.startswith("..") else name)
        for name in path.split("/")
    ),
    "drops blanks": lambda path: path.replace(" ", ""),
    "drops controls": lambda path: "".join(c for c in path if unicodedata.category(c)[0] != "C"),
    "cuts at NUL": lambda path: path.partition("\0")[0],
    "knows backslashes": lambda path: path.replace("\\", "/"),
    "cuts the query": lambda path: path.partition("?")[0].partition("#")[0],
    "joins slashes": lambda path: posixpath.normpath(path) + ("/" if path.endswith("/") else ""),
}

_PIECES = st.sampled_from(
    ". .. %2e %2E %2f %5c %252e %c0%ae %c0%af %u002e %09 %0a %00 %20 %3b %3f %23 ; / // \\ a ok admin ~ %ef%bc%8e "
    "%ef%bc%8f %e2%80%a5 %e2%80%a4 %c2%a0 %e2%80%8b %C3%A9 é ． ‥ x;y=.. %25 % %zz + @".split(" ")
)
_PATHS = st.lists(_PIECES, max_size=8).map(lambda pieces: "/ok/" + "".join(pieces))


@settings(max_examples=400)
@given(_PATHS, st.lists(st.sampled_from(sorted(HABITS)), min_size=1, max_size=4))
@example("/ok/..;/admin", ["drops parameters", "joins slashes"])
@example("/ok/%2e%2e/admin", ["decodes", "joins slashes"])
@example("/ok/%252e%252e/admin", ["decodes", "decodes", "joins slashes"])
@example("/ok/．．/admin", ["folds Unicode", "joins slashes"])
def test_no_habit_of_a_server_leads_out(path: str, habits: list[str]) -> None:
    sent = normal_path(path)
    if not (is_plain(sent) and (sent == "/ok" or sent.startswith("/ok/"))):
        return
    seen = sent
    for habit in habits:
        seen = HABITS[habit](seen)
    seen = posixpath.normpath(seen)
    assert seen == "/ok" or seen.startswith("/ok/"), (sent, seen)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/a",
        "/a/",
        "/a/b.tar.gz",
        "/.well-known/x",
        "/a%20b",
        "/%C3%A9t%C3%A9",
        "/a;v=1/b",
        "/@scope/name",
        "/a..b/c",
    ],
)
def test_ordinary_paths_are_plain(path: str) -> None:
    assert is_plain(path)


@pytest.mark.parametrize(
    "path", ["", "a", "//", "/a//b", "/.", "/..", "/a/..", "/a\\b", "/%", "/%2", "/%2f", "/\x01", "/%7f", "/a/%20/b"]
)
def test_others_are_not(path: str) -> None:
    assert not is_plain(path)


def test_the_time_is_linear_in_the_length() -> None:
    """By what it yields, not by the clock: a path of the longest length is judged at once."""
    assert not is_plain("/" + "%2e" * 16_000) and is_plain("/" + "a%20" * 16_000 + "a")
