"""Host names and addresses in normal form, their categories, and the host patterns of a policy. Pure except `is_own`.

All host comparisons use these. A spelling that another program could read as a different host is refused, so that the
host that is checked is the host that is dialled.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from enum import Enum, StrEnum

from warmcell.core.errors import PolicyViolation
from warmcell.net.optional_packages import need

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_HOST_LENGTH = 253
_WRONG_LENGTH = f"a host name has between 1 and {MAX_HOST_LENGTH} characters"
MAX_LABEL_LENGTH = 63
#: What IDNA takes for a dot.
_DOTS = re.compile("[.\u3002\uff0e\uff61]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# Resolvers read such names as addresses: 2130706433, 0x7f000001, 0177.0.0.1, 127.1. No top-level domain is a number.
_NUMBER_LIKE = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")


class HostError(ValueError):
    """The text is not a host name or address, or is ambiguous."""


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
    if len(text) > MAX_HOST_LENGTH + 1:  # with a final dot; IDNA takes quadratic time
        raise HostError(_WRONG_LENGTH)
    name = text if text.isascii() else _idna(text, lenient=lenient)
    name = name.lower()
    if name.endswith("."):
        name = name[:-1]
    if not name or len(name) > MAX_HOST_LENGTH:
        raise HostError(_WRONG_LENGTH)
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
        if max(map(len, _DOTS.split(text))) > MAX_LABEL_LENGTH:  # as above
            raise UnicodeError
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


class Category(Enum):
    """The kind of an address; the value completes the sentence "10.0.0.1 is ..."."""

    PUBLIC = "a public address"
    LOOPBACK = "a loopback address"
    PRIVATE = "a private address"
    OWN = "an address of this machine"
    LINK_LOCAL = "a link-local address"
    METADATA = "a cloud metadata address"
    MULTICAST = "a multicast or broadcast address"
    TRANSITION = "an IPv6 transition address"
    EXAMPLE = "an address for examples and measurements, not globally routable"
    RESERVED = "a reserved address, not globally routable"


def _networks(*texts: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


# Not `ipaddress.is_global`, which differs between Python releases: 3.11.7 accepts multicast, NAT64 of private
# addresses, 6to4 and site-local. First match wins.
# Azure's wire server and the metadata of Oracle and Alibaba are outside the link-local range.
_SPECIAL = (
    (
        Category.METADATA,
        _networks(
            "169.254.169.254/32",
            "169.254.170.2/32",
            "169.254.170.23/32",
            "169.254.0.23/32",
            "100.100.100.200/32",
            "168.63.129.16/32",
            "192.0.0.192/32",
            "fd00:ec2::/32",
            "fd20:ce::/32",
            "fe80::a9fe:a9fe/128",
        ),
    ),
    (Category.LOOPBACK, _networks("127.0.0.0/8", "0.0.0.0/8", "::1/128", "::/128")),
    (Category.LINK_LOCAL, _networks("169.254.0.0/16", "fe80::/10", "fec0::/10")),
    (Category.PRIVATE, _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")),
    (Category.MULTICAST, _networks("224.0.0.0/4", "255.255.255.255/32", "ff00::/8")),
    (Category.TRANSITION, _networks("2002::/16", "2001::/32", "64:ff9b:1::/48", "192.88.99.0/24")),
    (
        Category.EXAMPLE,
        _networks("192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"),
    ),
    (Category.RESERVED, _networks("192.0.0.0/24", "240.0.0.0/4", "2001::/23", "3ffe::/16", "3fff::/20")),
)
_GLOBAL_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_V4_TRANSLATED = ipaddress.IPv6Network("::ffff:0:0:0/96")
_V4_COMPATIBLE = ipaddress.IPv6Network("::/96")
_ISATAP_MARKS = (0x00005EFE, 0x02005EFE)


def unwrap_addresses(address: IPAddress) -> tuple[IPAddress, ...]:
    """The address itself and every IPv4 address embedded in it."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    number = int(address)
    low = ipaddress.IPv4Address(number & 0xFFFFFFFF)
    found: list[IPAddress] = [address]
    is_compatible = address in _V4_COMPATIBLE and number > 1
    if address.ipv4_mapped is not None or address in _NAT64 or address in _V4_TRANSLATED or is_compatible:
        found.append(low)
    if address in _NAT64_LOCAL:
        # RFC 6052: a /48 prefix splits the IPv4 address around bits 64 to 71; a /96 has it at the end.
        found += [low, ipaddress.IPv4Address((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF)]
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found += address.teredo
    if number >> 32 & 0xFFFFFFFF in _ISATAP_MARKS:
        found.append(low)
    return tuple(found)


def classify(address: IPAddress) -> Category:
    """The category of an embedded address or of the address itself; PUBLIC only if all are public."""
    for embedded in unwrap_addresses(address)[1:]:
        category = _category(embedded)
        if category is not Category.PUBLIC:
            return category
    # Mapped and NAT64 addresses mean the embedded address only. All other forms are checked themselves as well.
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address in _NAT64):
        return Category.PUBLIC
    return _category(address)


def _category(address: IPAddress) -> Category:
    for category, networks in _SPECIAL:
        if any(address in network for network in networks if network.version == address.version):
            return category
    if address.version == 6 and address not in _GLOBAL_UNICAST_V6:
        return Category.RESERVED
    return Category.PUBLIC


def is_own(address: IPAddress) -> bool:
    """Whether the address belongs to this machine: the kernel then picks the same address as the source.

    Connecting a UDP socket consults the routing table and sends nothing.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return bool(ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address)
    except OSError:
        return False


_PORT = re.compile(r"(.*[^:]):([0-9]{1,5})", re.DOTALL)
_BRACKETED_PORT = re.compile(r"(\[.*\]):([0-9]{1,5})", re.DOTALL)


class Reach(StrEnum):
    """Which hosts a pattern covers: one, those below it, or every name."""

    EXACT = "exact"
    BELOW = "below"
    ANY_NAME = "any name"


@dataclass(frozen=True, slots=True)
class HostPattern:
    """One host, its true subdomains, or every name: `example.com`, `*.example.com`, `*`, `10.1.2.3`.

    Only a literal pattern matches an address literal.
    """

    reach: Reach
    host: Host | None

    def matches(self, host: Host) -> bool:
        if self.reach is Reach.EXACT:
            return host == self.host
        if host.address is not None:
            return False
        return self.reach is Reach.ANY_NAME or host.name.endswith(f".{self.host}")

    def __str__(self) -> str:
        """As a policy writes it."""
        if self.host is None:
            return "*"
        return f"*.{self.host}" if self.reach is Reach.BELOW else self.host.in_url

    @property
    def address(self) -> IPAddress | None:
        return None if self.host is None else self.host.address


def parse_pattern(text: str) -> HostPattern:
    """Parse a pattern. Raises `PolicyViolation`."""
    if text == "*":
        return HostPattern(Reach.ANY_NAME, None)
    below = text.startswith("*.")
    try:
        host = parse_policy_host(text[2:] if below else text)
    except HostError as error:
        reason = f"{text!r} is not a domain, '*.domain' or IP address: {error}"
        raise PolicyViolation(reason, hint="write it without scheme and path") from None
    if below and host.address is not None:
        raise PolicyViolation(f"{text!r}: an IP address has no subdomains")
    return HostPattern(Reach.BELOW if below else Reach.EXACT, host)


def parse_entry(text: str) -> tuple[HostPattern, int | None]:
    """A pattern with an optional port, as in `allowed_domains`."""
    if not isinstance(text, str):
        raise PolicyViolation(f"a domain is text, not {type(text).__name__}")
    if text.startswith("["):
        found = _BRACKETED_PORT.fullmatch(text)
    else:
        found = _PORT.fullmatch(text) if text.count(":") == 1 else None
    if found is None:
        return parse_pattern(text), None
    port = int(found.group(2))
    if not 1 <= port <= 65535:
        raise PolicyViolation(f"{text!r} has a port outside 1 to 65535")
    return parse_pattern(found.group(1)), port


def parse_injection(text: str) -> tuple[HostPattern, bool]:
    """Parse a key of `inject`: the pattern, and whether plain HTTP is allowed (an `http://` prefix)."""
    in_clear = text.startswith("http://")
    return parse_pattern(text.removeprefix("http://")), in_clear
