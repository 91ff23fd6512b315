"""Strict URL parsing, and paths that all servers interpret alike. Pure.

Parsers disagree about unusual URLs, and SSRF attacks exploit that. This one accepts only URLs that all parsers read
alike: no userinfo, backslash, control character or space, no empty or non-decimal port.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes, urljoin

from warmcell.net.rules.hosts import Host, HostError, parse_host

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL_LENGTH = 16 * 1024

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_URL = re.compile(r"[A-Za-z]+://([^/?#]+)(/[^?#]*)?(\?[^#]*)?(#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(?::([1-9][0-9]{0,4}))?")
_FORBIDDEN = re.compile("[\x00-\x20\x7f\\\\\x80-\x9f\u2028\u2029\ufeff]")
_DOT = re.compile(r"(?:\.|%2e)", re.IGNORECASE)
_SAFE_IN_PATH = "/:@!$&'()*+,;=-._~%[]|"
_SAFE_IN_QUERY = _SAFE_IN_PATH + "?"


class UrlError(ValueError):
    """The URL is refused, before any name lookup."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. `path` and `query` are what is sent on the wire."""

    scheme: str
    host: Host
    port: int
    path: str = "/"
    query: str = ""

    @property
    def authority(self) -> str:
        """The Host header: with the port unless it is the scheme's default."""
        return self.host.in_url if DEFAULT_PORTS[self.scheme] == self.port else f"{self.host.in_url}:{self.port}"

    @property
    def request_target(self) -> str:
        return self.path + self.query

    @property
    def origin(self) -> tuple[str, str, int]:
        return (self.scheme, self.host.name, self.port)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.request_target}"


def parse_url(text: str) -> Target:
    """Parse an absolute http or https URL. Raises `UrlError`."""
    _check_characters(text)
    scheme = _scheme(text)
    parts = _URL.fullmatch(text)
    if parts is None:
        raise UrlError("the URL has no host")
    authority, path, query, _fragment = parts.groups()
    host, port = split_authority(authority, DEFAULT_PORTS[scheme])
    return Target(scheme, host, port, normal_path(path or "/"), quote(query or "", _SAFE_IN_QUERY))


def _check_characters(text: str) -> None:
    if not isinstance(text, str):
        raise UrlError(f"a URL is text, not {type(text).__name__}")
    if len(text) > MAX_URL_LENGTH:
        raise UrlError(f"the URL is longer than {MAX_URL_LENGTH} characters")
    found = _FORBIDDEN.search(text)
    if found:
        raise UrlError(f"the URL contains {found.group()!r}; percent-encode it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UrlError("the URL contains a lone surrogate") from None


def _scheme(text: str) -> str:
    found = _SCHEME.match(text)
    scheme = found.group(1).lower() if found else ""
    if scheme not in DEFAULT_PORTS:
        raise UrlError(f"only http and https URLs can be fetched, not {scheme or 'a URL without a scheme'}")
    return scheme


def split_authority(text: str, default_port: int | None) -> tuple[Host, int]:
    """Split `host` or `host:port`; without a default the port is required (CONNECT)."""
    if "@" in text:
        raise UrlError("a user name in the URL is refused; send an Authorization header")
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise UrlError(f"{text!r} is not a host with an optional port")
    port = int(found.group(2)) if found.group(2) else default_port
    if port is None or port > 65535:
        raise UrlError(f"{text!r} has no port between 1 and 65535")
    try:
        return parse_host(found.group(1)), port
    except HostError as error:
        raise UrlError(str(error)) from None


def normal_path(path: str) -> str:
    """Remove `.` and `..` segments in any spelling, so that rules see the path that the server uses."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for position, segment in enumerate(segments):
        plain = _DOT.sub(".", segment) if len(segment) <= 6 else segment
        is_last = position == len(segments) - 1
        if plain in (".", ".."):
            if plain == ".." and kept:
                kept.pop()
            if is_last:
                kept.append("")
        else:
            kept.append(segment)
    return quote("/" + "/".join(kept), _SAFE_IN_PATH)


def redirect_target(base: Target, location: str) -> Target:
    """Resolve a Location header, as strictly as a URL from a caller."""
    _check_characters(location)
    if not location:
        raise UrlError("empty Location header")
    try:
        return parse_url(urljoin(base.url, location))
    except UrlError:
        raise
    except ValueError as error:
        raise UrlError(f"malformed Location header: {error}") from None


_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
#: Escaped, these mean different things depending on whether a server splits or decodes first.
_NEVER_ESCAPED = frozenset(b"/\\.;%?#")
#: Some servers strip these, which can leave `.` or `..`.
_DROPPED_AT_THE_ENDS = ". "


def is_plain(path: str) -> bool:
    """Whether every server interprets the path, which must start with a slash, alike. Linear in its length.

    Servers transform a path before they use it: they decode it, sometimes twice, fold Unicode, drop `;parameters` and
    trailing blanks and dots, join empty segments, treat a backslash as a slash. A path that any of this could change
    into another one is not plain, and path rules refuse it.
    """
    if not path.startswith("/") or "\\" in path or _BAD_ESCAPE.search(path):
        return False
    if any(int(code, 16) in _NEVER_ESCAPED for code in _ESCAPED.findall(path)):
        return False
    try:
        text = unquote_to_bytes(path).decode()  # strict: rejects overlong forms, such as of a dot
    except UnicodeDecodeError:
        return False
    segments = text.split("/")[1:]
    return all(map(_is_plain_character, text)) and all(map(_is_plain_name, segments[:-1])) and _ends_plainly(segments)


def _ends_plainly(segments: list[str]) -> bool:
    """The last segment may be empty: a trailing slash."""
    return segments[-1] == "" or _is_plain_name(segments[-1])


def _is_plain_name(segment: str) -> bool:
    return bool(segment.partition(";")[0].strip(_DROPPED_AT_THE_ENDS))


def _is_plain_character(character: str) -> bool:
    """Printable ASCII, or a letter, digit or mark that stays one in every normal form."""
    if character.isascii():
        return " " <= character <= "~"
    return all(unicodedata.category(form)[0] in "LMN" for form in unicodedata.normalize("NFKC", character) + character)
