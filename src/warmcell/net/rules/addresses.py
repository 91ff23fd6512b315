"""Classifies IP addresses, including IPv4 addresses embedded in IPv6. Pure, apart from `is_own`.

Uses its own tables because `ipaddress.is_global` differs between Python releases (3.11.7 accepts multicast, NAT64 of
private addresses, 6to4 and site-local).
"""

from __future__ import annotations

import ipaddress
import socket
from enum import Enum

from warmcell.net.rules.hosts import IPAddress


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


# First match wins. Azure's wire server and the metadata of Oracle and Alibaba are outside the link-local range.
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
    (
        Category.RESERVED,
        _networks(
            "192.0.0.0/24",
            "240.0.0.0/4",
            "2001::/23",
            "3ffe::/16",
            "3fff::/20",
        ),
    ),
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
    """The worst category of the address and of those embedded in it; PUBLIC only if all are public."""
    inner = unwrap_addresses(address)[1:]
    for carried in inner:
        category = _category(carried)
        if category is not Category.PUBLIC:
            return category
    # These two stand for the embedded address alone. For all other forms the outer address is checked as well.
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
