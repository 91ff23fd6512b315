"""FetchRequest and FetchResponse."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmcell.net.rules.headers import Headers

# Python decodes these in quadratic time, and the server chooses the charset.
_SLOW_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape"})


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One HTTP request. `timeout` can only shorten the policy's timeout."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | str | None = None
    timeout: float | None = None
    follow_redirects: bool = True

    @property
    def body_bytes(self) -> bytes:
        if self.body is None:
            return b""
        return self.body.encode() if isinstance(self.body, str) else bytes(self.body)


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """A response with its body decoded. `url` is the final URL after redirects."""

    status: int
    headers: Headers
    body: bytes
    url: str

    def __post_init__(self) -> None:
        if not isinstance(self.headers, Headers):
            object.__setattr__(self, "headers", Headers(self.headers.items()))

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def text(self) -> str:
        """The body as text, in the charset of the Content-Type or UTF-8; undecodable bytes are replaced."""
        charset = "utf-8"
        for part in self.headers.get("content-type", "").split(";")[1:]:
            name, _, value = part.strip().partition("=")
            if name.lower() == "charset":
                charset = value.strip("\"' ")
        try:
            if codecs.lookup(charset).name in _SLOW_CHARSETS:
                charset = "utf-8"
            return self.body.decode(charset, "replace")
        except (LookupError, ValueError):
            return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.body)
