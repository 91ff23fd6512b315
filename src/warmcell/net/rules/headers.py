"""Header fields: which a caller may set, which follow a redirect, and the response mapping. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from warmcell.core.errors import FetchFailed

MAX_HEADERS = 128
MAX_HEADER_BYTES = 64 * 1024


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BAD_IN_VALUE = re.compile("[\x00-\x1f\x7f]")
# These define framing and routing, so only the client itself sets them.
RESERVED = _words(
    "host content-length transfer-encoding connection keep-alive upgrade te trailer expect proxy-connection "
    "proxy-authorization proxy-authenticate http2-settings"
)
# Some servers let these override the method or path, and so bypass a rule.
STEERING = _words(
    "x-http-method x-http-method-override x-method-override x-original-url x-rewrite-url "
    "x-original-uri x-forwarded-uri x-forwarded-path x-forwarded-prefix x-original-path x-envoy-original-path "
    "x-waws-unencoded-url x-http-path-override"
)
# These request a partial response or another charset, in which redaction would not recognise a secret.
_HIDE_SECRETS = _words("range if-range request-range accept-charset accept-ranges max-forwards")
_SAFE_ACROSS_ORIGINS = _words(
    "accept accept-language accept-encoding user-agent range cache-control if-none-match if-modified-since"
)
_ABOUT_THE_BODY = _words("content-type content-encoding content-language content-location")

HeaderList = list[tuple[str, str]]


def check_headers(headers: Mapping[str, str]) -> HeaderList:
    """Validate the caller's headers. Raises `FetchFailed`."""
    if not isinstance(headers, Mapping) or len(headers) > MAX_HEADERS:
        raise _invalid(f"headers must be a mapping of at most {MAX_HEADERS} entries")
    pairs = [_check_header(name, value) for name, value in headers.items()]
    if sum(len(name) + len(value) + 4 for name, value in pairs) > MAX_HEADER_BYTES:
        raise _invalid(f"the headers are larger than {MAX_HEADER_BYTES} bytes")
    return pairs


def _check_header(name: object, value: object) -> tuple[str, str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _invalid(f"{str(name)[:60]!r} is not a header name")
    if name.lower() in RESERVED:
        raise _invalid(f"the header {name!r} cannot be set; the client sets it")
    if not isinstance(value, str) or _BAD_IN_VALUE.search(value):
        raise _invalid(f"the value of {name!r} contains a control character or is not text")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise _invalid(f"the value of {name!r} contains characters outside Latin-1") from None
    return name, value.strip(" ")


def _invalid(message: str) -> FetchFailed:
    return FetchFailed(message, reason="invalid")


def steering_header(headers: Iterable[tuple[str, str]]) -> str | None:
    """The name of a header that could bypass a rule about methods or paths, or None."""
    return next((name for name, _ in headers if _cgi_name(name) in STEERING), None)


def _cgi_name(name: str) -> str:
    """CGI, WSGI and Rack turn hyphens into underscores, so for many servers `X_Original_URL` is `X-Original-URL`."""
    return name.lower().replace("_", "-")


def without_credentials(headers: HeaderList) -> HeaderList:
    """The headers that may be sent to another origin: only those on a list of headers that hold no credentials."""
    kept = _SAFE_ACROSS_ORIGINS | _ABOUT_THE_BODY
    return [(name, value) for name, value in headers if name.lower() in kept]


def without_body_headers(headers: HeaderList) -> HeaderList:
    return [(name, value) for name, value in headers if name.lower() not in _ABOUT_THE_BODY]


def without_range_headers(headers: HeaderList) -> HeaderList:
    """The headers without those that could hide a secret from redaction. Used whenever a credential is added."""
    return [(name, value) for name, value in headers if _cgi_name(name) not in _HIDE_SECRETS]


def replace_headers(headers: HeaderList, extra: Mapping[str, str]) -> HeaderList:
    """The headers with those of `extra` replacing any of the same name."""
    names = {name.lower() for name in extra}
    return [(name, value) for name, value in headers if name.lower() not in names] + list(extra.items())


class Headers(Mapping[str, str]):
    """Response headers: case-insensitive; repeated values are joined by a comma (`get_all` returns them separately)."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = tuple((name.lower(), value) for name, value in pairs)

    def get_all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name.lower()]

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Name and value of each header line."""
        return self._pairs

    def __getitem__(self, name: str) -> str:
        values = self.get_all(name)
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self._pairs))

    def __len__(self) -> int:
        return len({name for name, _ in self._pairs})

    def __repr__(self) -> str:
        return f"Headers({dict(self)!r})"
