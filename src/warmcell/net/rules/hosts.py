"""Host names and address literals in normal form. Pure.

All host comparisons use these. A spelling that another program could read as a different host is refused, not repaired,
so that the host that is checked is the host that is dialled.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from warmcell.net.optional_packages import need

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_HOST_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# What resolvers read as an address: 2130706433, 0x7f000001, 0177.0.0.1, 127.1. No top-level domain is a number.
_NUMBER_LIKE = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")


class HostError(ValueError):
    """Not a host, or an ambiguous one."""


@dataclass(frozen=True, slots=True)
class Host:
    """A normalised host. `address` is set if it was written as an IP address."""

    name: str
    address: IPAddress | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def in_url(self) -> str:
        """Its form in a URL or Host header."""
        return f"[{self.name}]" if self.address is not None and self.address.version == 6 else self.name


def parse_host(text: str) -> Host:
    """Parse a name, `127.0.0.1` or `[::1]`. Raises `HostError`."""
    if text.startswith("["):
        return _parse_ipv6(text)
    return _parse_name(text, lenient=False)


def parse_policy_host(text: str) -> Host:
    """Like `parse_host`, for text from a policy: bare IPv6 and any Unicode spelling are accepted."""
    if ":" in text and not text.startswith("["):
        text = f"[{text}]"
    return _parse_ipv6(text) if text.startswith("[") else _parse_name(text, lenient=True)


def _parse_ipv6(text: str) -> Host:
    inner = text[1:-1]
    if not text.endswith("]") or not re.fullmatch(r"[0-9a-fA-F:.]+", inner):
        raise HostError(f"{text!r} is not an IPv6 address")
    try:
        address = ipaddress.IPv6Address(inner)
    except ValueError:
        raise HostError(f"{text!r} is not an IPv6 address") from None
    return Host(str(address), address)


def _parse_name(text: str, *, lenient: bool) -> Host:
    name = text if text.isascii() else _idna(text, lenient=lenient)
    name = name.lower()
    if name.endswith("."):
        name = name[:-1]
    if not name or len(name) > MAX_HOST_LENGTH:
        raise HostError(f"a host name has between 1 and {MAX_HOST_LENGTH} characters")
    labels = name.split(".")
    if _NUMBER_LIKE.fullmatch(labels[-1]):
        return _parse_ipv4(name)
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise HostError(f"{text!r} is not a host name")
    if any(label.startswith("xn--") for label in labels):
        _check_encoded(name)
    return Host(name)


def _parse_ipv4(name: str) -> Host:
    try:
        address = ipaddress.IPv4Address(name)
    except ValueError:
        raise HostError(f"{name!r} is an unusual spelling of an IP address; write it as four decimal numbers") from None
    return Host(str(address), address)


def _idna(text: str, *, lenient: bool) -> str:
    """Encode as IDNA 2008. Strict mode has no mapping step: a name that would be mapped to another is an error."""
    idna = need("idna")
    try:
        encoded: bytes = idna.encode(text, uts46=lenient, std3_rules=True)
        # Decoding again reveals silent mapping, such as a full-width dot.
        if lenient or idna.decode(encoded) == text.lower():
            return encoded.decode("ascii")
    except (idna.IDNAError, UnicodeError):
        pass
    raise HostError(f"{text!r} is not a host name in normal form; write it in its xn-- form")


def _check_encoded(name: str) -> None:
    """Require that `xn--` labels round-trip; otherwise two names would mean one host."""
    idna = need("idna")
    try:
        if idna.encode(idna.decode(name)).decode("ascii") == name:
            return
    except (idna.IDNAError, UnicodeError):
        pass
    raise HostError(f"{name!r} contains an invalid xn-- label")
