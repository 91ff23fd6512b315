"""Requests inside a tunnel go where the tunnel goes."""

from __future__ import annotations

import pytest

from warmcell.net.proxy.forward_request import HeadError, RequestHead
from warmcell.net.proxy.serve import PinnedTarget, parse_target
from warmcell.net.rules.hosts import Host
from warmcell.net.rules.urls import UrlError

PINNED = PinnedTarget("https", Host("site.test"), 443)


def head(target: str, host: str = "site.test") -> RequestHead:
    return RequestHead("GET", target, 1, (("Host", host),))


def test_a_path_stays_at_the_pinned_host() -> None:
    assert parse_target(head("/a?b"), PINNED).url == "https://site.test/a?b"
    assert parse_target(head("//evil.test/a"), PINNED).host == Host("site.test")


@pytest.mark.parametrize(
    "target", [".evil.test/", "@evil.test/", ":8443/", "http://evil.test/", "*", "?x", "\\evil.test/"]
)
def test_what_is_no_path_is_refused(target: str) -> None:
    with pytest.raises(HeadError, match="must use a path"):
        parse_target(head(target), PINNED)


@pytest.mark.parametrize("host", ["evil.test", "site.test:80", "site.test.evil.test", "a@site.test", ""])
def test_the_host_header_must_be_the_pinned_host(host: str) -> None:
    with pytest.raises((HeadError, UrlError)):
        parse_target(head("/", host), PINNED)
