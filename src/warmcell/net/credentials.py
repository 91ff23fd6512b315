"""Credentials that stay on the host: read when used, never printed, redacted from every response."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from warmcell.core.errors import FetchFailed, InvalidRequest

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 4
_PARTIAL_CONTENT = 206
_SHORTEST_PIECE = 8


class SecretUnavailable(FetchFailed):
    """A secret that cannot be read or used. Its message says where the secret is kept, so it is for the host only."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="invalid")


class SecretRef:
    """A reference to a secret. `format` builds the header value: `SecretRef.env("TOKEN", format="Bearer {}")`."""

    __slots__ = ("_format", "_label", "_read", "_username")

    def __init__(self, read: Callable[[], str], *, label: str = "callable", format: str = "{}") -> None:
        if format.count("{}") != 1:
            raise InvalidRequest("must contain {} exactly once", field="format")
        self._read, self._label, self._format = read, label, format
        #: For Basic authentication.
        self._username: str | None = None

    @classmethod
    def env(cls, name: str, *, format: str = "{}") -> SecretRef:
        """The value of an environment variable of this process."""
        return cls(lambda: os.environ[name], label=f"env:{name}", format=format)

    @classmethod
    def file(cls, path: str | os.PathLike[str], *, format: str = "{}") -> SecretRef:
        """The content of a file without trailing newlines."""
        return cls(lambda: Path(path).read_text().rstrip("\r\n"), label=f"file:{os.fspath(path)}", format=format)

    @classmethod
    def basic(cls, username: str, password: SecretRef) -> SecretRef:
        """Basic authentication, as git over HTTPS and many registries use it: `Authorization` with both in base64."""
        if not isinstance(username, str) or ":" in username or not username.isascii() or not username.isprintable():
            raise InvalidRequest("must be printable ASCII without a colon", field="username")
        made = cls(password._read, label=f"basic {password._label}", format=password._format)
        made._username = username
        return made

    def __repr__(self) -> str:
        return f"SecretRef({self._label})"

    def reveal(self) -> tuple[str, str]:
        """The bare secret (for redaction) and the header value. Errors never quote either."""
        secret = self._read_checked()
        value = self._format.replace("{}", secret)
        if self._username is None:
            return secret, value
        return secret, "Basic " + base64.b64encode(f"{self._username}:{value}".encode()).decode()

    def _read_checked(self) -> str:
        try:
            secret = self._read()
        except Exception as error:
            raise SecretUnavailable(f"could not read the secret {self._label} ({type(error).__name__})") from None
        if not isinstance(secret, str) or len(secret) < MIN_SECRET_LENGTH:
            raise SecretUnavailable(f"the secret {self._label} is shorter than {MIN_SECRET_LENGTH} characters")
        if not secret.isascii() or not secret.isprintable():
            raise SecretUnavailable(f"the secret {self._label} contains characters that are not allowed in a header")
        return secret


class Redactor:
    """Replaces secrets, also percent-encoded, escaped for JSON or HTML, in hexadecimal, UTF-16 or base64."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._needles: tuple[bytes, ...] = ()
        self.add(secrets)

    def __bool__(self) -> bool:
        return bool(self._needles)

    def add(self, secrets: Iterable[str]) -> None:
        found = set(self._needles)
        for secret in secrets:
            found.update(_spellings(secret))
        # Longest first: a secret that contains another one must not stay half visible.
        self._needles = tuple(sorted(found, key=len, reverse=True))

    def data(self, data: bytes) -> bytes:
        for needle in self._needles:
            if needle in data:
                data = data.replace(needle, REDACTED.encode())
        return data

    def find(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets begin and end; of those that begin at one place the longest."""
        if any(needle in data for needle in self._needles):
            pattern = b"|".join(map(re.escape, self._needles))
            yield from (found.span() for found in re.finditer(pattern, data))

    def open_end(self, data: bytes) -> int:
        """Where the first secret begins of which the data has only a part; the length of the data if there is none."""
        return min((_find_part(needle, data) for needle in self._needles), default=len(data))

    def is_in(self, name: str) -> bool:
        """Whether a header name contains a secret, in any case."""
        lowered = name.lower().encode("latin-1", "replace")
        return any(needle.lower() in lowered for needle in self._needles)

    def text(self, text: str) -> str:
        return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass") if self else text


def clean_headers(redactor: Redactor, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Response headers without secrets in names or values."""
    return [(name, redactor.text(value)) for name, value in headers if not redactor.is_in(name)]


def refuse_hidden_echo(redactor: Redactor, headers: Mapping[str, str]) -> None:
    """Refuse a response in an encoding that we cannot decode: it could hide the secret from redaction."""
    coding = headers.get("content-encoding", "identity").strip().lower()
    if redactor and coding not in ("", "identity"):
        raise FetchFailed(f"the response is encoded with {coding[:40]!r}, which could hide a secret", reason="connect")


def refuse_partial(redactor: Redactor, status: int, headers: Mapping[str, str]) -> None:
    """Refuse a partial response: it could contain part of the secret, which redaction does not recognise."""
    is_partial = status == _PARTIAL_CONTENT or "content-range" in headers
    if redactor and (is_partial or headers.get("content-type", "").strip().lower().startswith("multipart/byteranges")):
        raise FetchFailed("the response is partial and could contain part of a secret", reason="connect")


class StreamRedactor:
    """A redactor for streamed data: it holds back bytes that could be the start of a secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if not self._redactor:
            return data
        data = self._held + data
        # What begins later may be the start of a secret, or a whole one that is the start of a longer one. No more is
        # held back: the end of an event must not wait for the next one.
        certain = self._redactor.open_end(data)
        shown: list[bytes] = []
        done = 0
        for begin, end in self._redactor.find(data):
            if begin >= certain:
                break
            shown += [data[done:begin], REDACTED.encode()]
            done = end
        kept = max(done, certain)
        self._held = data[kept:]
        return b"".join([*shown, data[done:kept]])

    def finish(self) -> bytes:
        rest, self._held = self._held, b""
        return self._redactor.data(rest)


#: Of the start of a secret at the end of some data, only this much is searched for. The rest is compared where that is.
_START = 8


def _find_part(needle: bytes, data: bytes) -> int:
    """Where a part of the needle begins with which the data ends; the length of the data if there is none."""
    start = needle[:_START]
    at = max(0, len(data) - len(needle) + 1)
    while (at := data.find(start, at)) >= 0:
        if needle.startswith(data[at:]):
            return at
        at += 1
    shorter = range(max(0, len(data) - len(start) + 1), len(data))
    return next((at for at in shorter if start.startswith(data[at:])), len(data))


def _spellings(secret: str) -> set[bytes]:
    raw = secret.encode()
    quoted = {quote(secret, safe=""), quote(secret)}
    quoted |= {re.sub("%..", lambda found: found[0].lower(), text) for text in quoted}
    marked_up = html.escape(secret)
    escaped = {*quoted, *_in_json(secret), marked_up, marked_up.replace("&#x27;", "&#39;")}
    wide = {secret.encode("utf-16-le"), raw.hex().encode(), raw.hex().upper().encode()}
    return {raw, *(text.encode() for text in escaped), *wide, *_in_base64(raw)}


def _in_json(secret: str) -> Iterator[str]:
    """As JSON libraries write it: PHP escapes slashes; Go, Gson and .NET, in this order, what has a meaning in HTML."""
    text = json.dumps(secret)[1:-1]
    yield from (text, text.replace("/", "\\/"))
    for special in ("<>&", "<>&='", "<>&'+`"):
        for form in ("\\u{:04x}", "\\u{:04X}"):
            yield "".join(form.format(ord(letter)) if letter in special else letter for letter in text)


def _in_base64(raw: bytes) -> set[bytes]:
    """Its base64 forms at each of the three alignments, as in `user:secret`."""
    found = {base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"=")}
    for before, shared in ((0, 0), (1, 2), (2, 3)):
        whole = bytes(before) + raw
        # The letters at both ends also encode bits of the neighbouring bytes, which we do not know.
        sure = len(whole) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            letters = encode(whole)[shared:sure]
            if len(letters) >= _SHORTEST_PIECE:
                found.add(letters)
    return found
