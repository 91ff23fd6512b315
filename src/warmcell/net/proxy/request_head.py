"""Strict parsing of request heads, so that proxy and server agree on where a message ends. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
MAX_HEAD_LINES = 256

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]{1,16384}) HTTP/1\.([01])")
# One character class each: a guest cannot exploit backtracking.
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\x20-\x7e\x80-\xff\t]*")
_ONCE = ("host", "content-length", "transfer-encoding")


class HeadError(ValueError):
    """The head is refused; nothing was forwarded."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request line and its header fields. The method is in upper case."""

    method: str
    target: str
    minor_version: int
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


def parse_head(raw: bytes) -> RequestHead:
    """Parse a head that ends with an empty line. Raises `HeadError`."""
    lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if len(lines) > MAX_HEAD_LINES:
        raise HeadError(f"more than {MAX_HEAD_LINES} header lines")
    first = _REQUEST_LINE.fullmatch(lines[0])
    if first is None:
        raise HeadError("malformed request line")
    method, target, minor = first.groups()
    head = RequestHead(method.decode().upper(), target.decode(), int(minor), tuple(_field(line) for line in lines[1:]))
    _check_framing(head)
    return head


def _field(line: bytes) -> tuple[str, str]:
    if line[:1] in (b" ", b"\t"):
        raise HeadError("a folded header line")
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise HeadError("malformed header line")
    return name.decode("ascii"), value.strip(b" \t").decode("latin-1")


def _check_framing(head: RequestHead) -> None:
    names = [name.lower() for name, _ in head.headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise HeadError(f"more than one {name} header")
    if "content-length" in names and "transfer-encoding" in names:
        raise HeadError("both content-length and transfer-encoding")
    length, coding = head.get("content-length"), head.get("transfer-encoding")
    if length is not None and not re.fullmatch(r"[0-9]{1,18}", length):
        raise HeadError("malformed content-length")
    if coding is not None and (coding.lower() != "chunked" or head.minor_version == 0):
        raise HeadError("a transfer-encoding other than chunked")
    if head.minor_version == 1 and "host" not in names:
        raise HeadError("no host header")
