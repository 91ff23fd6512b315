"""URLs: the host that is judged is the host that every other parser would dial, or the URL is refused."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmcell.net.rules.hosts import parse_host
from warmcell.net.rules.urls import Target, UrlError, parse_url, redirect_target, split_authority


@pytest.mark.parametrize(
    ("url", "host", "port", "target"),
    [
        ("http://example.com", "example.com", 80, "/"),
        ("HTTPS://Example.COM./a?b#c", "example.com", 443, "/a?b"),
        ("http://example.com:8080?x=1", "example.com", 8080, "/?x=1"),
        ("http://[::1]:8080/", "::1", 8080, "/"),
        ("http://[2606:4700:0:0::1]/", "2606:4700::1", 80, "/"),
        ("http://1.2.3.4/", "1.2.3.4", 80, "/"),
        ("http://bücher.example/ä?ö", "xn--bcher-kva.example", 80, "/%C3%A4?%C3%B6"),
        ("http://my_host.example/", "my_host.example", 80, "/"),
        ("http://a.test/b/../c/./d/..", "a.test", 80, "/c/"),
        ("http://a.test/b/%2e%2E/c", "a.test", 80, "/c"),
        ("http://a.test/../../x", "a.test", 80, "/x"),
        ('http://a.test/a"b<c>|d', "a.test", 80, "/a%22b%3Cc%3E|d"),
        ("http://a.test/100%25?a=[1]", "a.test", 80, "/100%25?a=[1]"),
    ],
)
def test_read(url: str, host: str, port: int, target: str) -> None:
    parsed = parse_url(url)
    assert (parsed.host.name, parsed.port, parsed.request_target) == (host, port, target)
    assert parse_url(parsed.url) == parsed


CONFUSING = [
    "http://allowed.com@evil.com/",
    "http://user:pass@evil.com/",
    "http://evil.com\\@allowed.com/",
    "http://allowed.com\\@evil.com",
    "http://allowed.com\\.evil.com",
    "http:\\\\evil.com",
    "http://allowed.com%2eevil.com/",
    "http://allowed.com%00.evil.com/",
    "http://allowed%2ecom/",
    "http:///127.0.0.1",
    "http:/127.0.0.1",
    "http:127.0.0.1",
    "http://",
    "http://?x",
    "http://#x",
    "http://:80/",
    "http://allowed.com:80:443/",
    "http://allowed.com:/",
    "http://allowed.com:0/",
    "http://allowed.com:00080/",
    "http://allowed.com:65536/",
    "http://allowed.com:+80/",
    "http://allowed.com:8０/",
    "http://allowed.com: 80/",
    "//allowed.com/",
    "allowed.com",
    "",
    " http://allowed.com/",
    "http://allowed.com/ ",
    "http://allowed.com/a b",
    "http://allo\twed.com/",
    "http://allowed.com/\r\nX: y",
    "http://allowed.com\n.evil.com/",
    "http://allowed.com/\0",
    "http://[::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[::1/",
    "http://[::1]evil.com/",
    "http://[v1.x]/",
    "http://[127.0.0.1]/",
    "http://a..b/",
    "http://.a/",
    "http://a../",
    "http://-a.com/",
    "http://a b.com/",
    "http://a,b.com/",
    "http://a;b.com/",
    "http://exa mple.com/",
    "http://" + "a" * 64 + ".com/",
    "http://" + "a." * 130 + "com/",
    "http://a.test/\ud800",
    "http://a.test/" + "x" * 20000,
]


@pytest.mark.attack("SS-11")
@pytest.mark.parametrize("url", CONFUSING)
def test_ambiguous_urls_are_refused(url: str) -> None:
    with pytest.raises(UrlError):
        parse_url(url)


def test_a_password_in_a_url_is_not_repeated_in_the_error() -> None:
    with pytest.raises(UrlError) as caught:
        parse_url("http://user:canary@example.com/")
    assert "canary" not in str(caught.value) and "Authorization" in str(caught.value)


@pytest.mark.attack("SS-11")
def test_what_follows_a_fragment_is_never_a_host() -> None:
    assert parse_url("http://evil.com#@allowed.com").host.name == "evil.com"
    assert parse_url("http://evil.com?@allowed.com").host.name == "evil.com"
    assert parse_url("http://evil.com/@allowed.com").host.name == "evil.com"


@pytest.mark.attack("SS-02")
@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0",
        "017700000001",
        "0x7f.1",
        "127.0.0.1.",
        "127.0.0.01",
        "127.0.1",
        "1.2.3.4.5",
        "256.1.1.1",
        "0x",
        "a.0x7f",
        "evil.1",
        "00000177.0.0.1",
        "127.0.0.0x1",
        "4294967297",
    ],
)
def test_odd_spellings_of_addresses_are_refused(host: str) -> None:
    if host == "127.0.0.1.":
        assert parse_url(f"http://{host}/").host.address is not None
        return
    with pytest.raises(UrlError):
        parse_url(f"http://{host}/")


@pytest.mark.parametrize(
    "host",
    [
        "１２７.0.0.1",
        "127。0。0。1",
        "ⓔxample.com",
        "EXAMPLE。com",
        "ｅxample.com",
        "exam\xadple.com",
        "faß⁄x.com",
        "xn--a",
        "xn--bcher-kva-.example",
        "xn--ls8h.la\u200d",
        "℀.com",
        "a℆b.com",
        "①.com",
        "xn---",
    ],
)
@pytest.mark.attack("SS-11")
def test_unicode_that_normalises_to_another_host_is_refused(host: str) -> None:
    with pytest.raises(UrlError):
        parse_url(f"http://{host}/")


@pytest.mark.attack("SS-15")
@pytest.mark.parametrize("scheme", ["file", "gopher", "ftp", "data", "unix", "ws", "wss", "jar", "blob", "javascript"])
@pytest.mark.parametrize("rest", ["://allowed.com/", ":allowed.com", ":///etc/passwd", "+http://allowed.com/"])
def test_other_schemes_are_refused(scheme: str, rest: str) -> None:
    with pytest.raises(UrlError):
        parse_url(scheme + rest)


@pytest.mark.parametrize(
    "location", ["http:\\\\evil.com", "/\\evil.com", "http://a@b/", "file:///etc/passwd", "\tx", ""]
)
def test_redirects_are_read_as_strictly(location: str) -> None:
    with pytest.raises(UrlError):
        redirect_target(parse_url("http://a.test/x"), location)


def test_relative_redirects() -> None:
    base = parse_url("https://a.test:8443/x/y?z")
    assert redirect_target(base, "w").url == "https://a.test:8443/x/w"
    assert redirect_target(base, "/w").url == "https://a.test:8443/w"
    assert redirect_target(base, "//b.test/w").url == "https://b.test/w"
    assert redirect_target(base, "?q").url == "https://a.test:8443/x/y?q"


@pytest.mark.attack("S2-32")
@pytest.mark.parametrize("name", ["\u0660" * 5000, "".join(map(chr, range(0x4E00, 0x4E00 + 5000)))])
def test_a_long_name_is_refused_before_it_is_encoded(name: str) -> None:
    """IDNA compares each character with all others: a URL of 16,000 held the host's event loop for ten seconds."""
    with pytest.raises(UrlError, match="between 1 and 253 characters"):
        parse_url(f"http://{name}/")
    with pytest.raises(UrlError, match="between 1 and 253 characters"):
        redirect_target(parse_url("http://a.test/"), f"http://{name}/")


def test_an_authority_without_a_port() -> None:
    with pytest.raises(UrlError):
        split_authority("a.test", None)
    assert split_authority("a.test:1", None)[1] == 1


_PIECES = st.sampled_from(
    [
        "http",
        "https",
        "://",
        ":",
        "/",
        "//",
        "\\",
        "@",
        "#",
        "?",
        "%",
        ".",
        "allowed.com",
        "evil.com",
        "127.0.0.1",
        "[",
        "]",
        "[::1]",
        "%2e",
        "%00",
        "\t",
        "\r\n",
        " ",
        "80",
        ":443",
        "0x7f",
        "。",
        "ﬁ",
        "xn--",
        "..",
        ";",
        "&",
        "=",
        "ß",
    ]
)
_URLS = st.one_of(
    st.lists(_PIECES, max_size=12).map("".join),
    st.lists(_PIECES, max_size=10).map(lambda parts: "http://" + "".join(parts)),
    st.text(max_size=40).map(lambda text: "http://" + text),
)


def _parse_or_none(url: str) -> Target | None:
    try:
        return parse_url(url)
    except UrlError:
        return None


@given(_URLS)
@example("http://evil.com\\@allowed.com")
@example("http://allowed.com:80#@evil.com")
def test_another_parser_reads_the_same_host_and_port(url: str) -> None:
    target = _parse_or_none(url)
    if target is None:
        return
    other = urlsplit(url)
    assert other.username is None and other.password is None
    assert parse_host(_bracket(other.hostname or "")) == target.host
    assert (other.port or {"http": 80, "https": 443}[other.scheme]) == target.port


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@given(_URLS)
def test_reading_again_what_was_read_changes_nothing(url: str) -> None:
    target = _parse_or_none(url)
    if target is not None:
        assert target.url.isascii()
        assert parse_url(target.url) == target
