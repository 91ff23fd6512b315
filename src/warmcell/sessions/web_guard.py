"""Decides which connections to an exposed port are allowed: none that a foreign web page can make. Pure module.

A page can have its own name lead to 127.0.0.1 (DNS rebinding) and then speaks to the port as to its own server; its
browser says so in `Host`. It can also open a WebSocket to the port by address; its browser says so in `Origin`. It can
load a script or an image from there; then there is no `Origin`, but the browser says so in `Sec-Fetch-Site`.
In clear text browsers speak HTTP and nothing else, so anything that is not HTTP is passed through.
"""

from __future__ import annotations

import ipaddress
import re

#: The head of a request, at most. Browsers send it at once.
MOST_HEAD = 1 << 16
#: As a browser begins one: a method, which a page may make up, of any length, and a path.
_REQUEST = re.compile(rb"[\w!#$%&'*+.^`|~-]+ /", re.ASCII)
_HTTP_1 = re.compile(rb"HTTP/1\.\d\r?$")
_END = re.compile(rb"\r?\n\r?\n")

REFUSAL = (
    "HTTP/1.1 421 Misdirected Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    "this port answers to localhost and 127.0.0.1 only\n"
)


def is_allowed(data: bytes | bytearray, seen: int = 0) -> bool | None:
    """Decides by the first bytes of a connection; None if more are needed.

    `seen`: how many of them earlier calls looked at without a decision. Only the rest is searched, so that a client
    that sends single bytes costs no more than one that sends all at once.
    """
    if not seen and not _REQUEST.match(data):
        return True
    undecided = None if len(data) < MOST_HEAD else False
    if data.find(b"\n", seen) < 0:
        return undecided
    line_end = data.find(b"\n")
    if line_end >= seen and not _HTTP_1.search(data[:line_end]):
        return True
    end = _END.search(data, max(0, seen - 3))
    return undecided if end is None else _are_loopback(bytes(data[line_end + 1 : end.start()]).split(b"\n"))


def _are_loopback(lines: list[bytes]) -> bool:
    """Whether `Host` and `Origin` both name this machine, and no page of another site embeds the answer."""
    fields: dict[bytes, str] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        text = fields[name.strip().lower()] = value.strip().decode("latin-1")
        if name.strip().lower() == b"host" and not is_loopback(text):
            return False
        if name.strip().lower() == b"origin" and not is_loopback(text.partition("://")[2]):
            return False
    is_embedded = fields.get(b"sec-fetch-mode") == "no-cors" and fields.get(b"sec-fetch-site") == "cross-site"
    # To a browser, localhost and 127.0.0.1 are two sites. A page that hides where it is counts as another site's.
    return not is_embedded or is_loopback(fields.get(b"referer", "").partition("://")[2].partition("/")[0])


def is_loopback(authority: str) -> bool:
    """Whether `name`, `name:port` or `[address]:port` can mean this machine only, whatever a name server says."""
    bracketed = re.fullmatch(r"\[([^\]]*)\](:\d+)?", authority)
    name = bracketed[1] if bracketed else re.sub(r":\d*$", "", authority)
    if name.lower() == "localhost" or name.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
