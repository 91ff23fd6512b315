"""Addresses are what they are after unwrapping, whatever they are written as."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.net.rules.hosts import Category, classify, is_own, unwrap_addresses

NOT_PUBLIC = {
    "127.0.0.1": Category.LOOPBACK,
    "127.255.255.254": Category.LOOPBACK,
    "0.0.0.0": Category.LOOPBACK,
    "0.1.2.3": Category.LOOPBACK,
    "::": Category.LOOPBACK,
    "::1": Category.LOOPBACK,
    "10.0.0.1": Category.PRIVATE,
    "172.16.0.1": Category.PRIVATE,
    "172.31.255.255": Category.PRIVATE,
    "192.168.1.1": Category.PRIVATE,
    "100.64.0.1": Category.PRIVATE,
    "100.127.255.255": Category.PRIVATE,
    "fc00::1": Category.PRIVATE,
    "fd12:3456::1": Category.PRIVATE,
    "169.254.1.1": Category.LINK_LOCAL,
    "fe80::1": Category.LINK_LOCAL,
    "fec0::1": Category.LINK_LOCAL,
    "169.254.169.254": Category.METADATA,
    "169.254.170.2": Category.METADATA,
    "168.63.129.16": Category.METADATA,
    "100.100.100.200": Category.METADATA,
    "192.0.0.192": Category.METADATA,
    "fd00:ec2::254": Category.METADATA,
    "fd20:ce::254": Category.METADATA,
    "224.0.0.1": Category.MULTICAST,
    "239.255.255.250": Category.MULTICAST,
    "255.255.255.255": Category.MULTICAST,
    "ff02::1": Category.MULTICAST,
    "192.0.2.1": Category.EXAMPLE,
    "198.18.0.1": Category.EXAMPLE,
    "198.51.100.1": Category.EXAMPLE,
    "203.0.113.1": Category.EXAMPLE,
    "240.0.0.1": Category.RESERVED,
    "2001:db8::1": Category.EXAMPLE,
    "2001:2::1": Category.RESERVED,
    "2001:20::1": Category.RESERVED,
    "3fff::1": Category.RESERVED,
    "100::1": Category.RESERVED,
    "5f00::1": Category.RESERVED,
    "4000::1": Category.RESERVED,
    "192.88.99.1": Category.TRANSITION,
    # IPv4 inside IPv6: mapped, compatible, translated, NAT64 (both prefixes), 6to4, Teredo, ISATAP.
    "::ffff:127.0.0.1": Category.LOOPBACK,
    "::ffff:7f00:1": Category.LOOPBACK,
    "::ffff:169.254.169.254": Category.METADATA,
    "::127.0.0.1": Category.LOOPBACK,
    "::ffff:0:127.0.0.1": Category.LOOPBACK,
    "64:ff9b::10.0.0.1": Category.PRIVATE,
    "64:ff9b::a9fe:a9fe": Category.METADATA,
    "64:ff9b:1::10.0.0.1": Category.PRIVATE,
    "64:ff9b:1:a9fe:a9:fe08:808:808": Category.METADATA,
    "64:ff9b:1::8.8.8.8": Category.LOOPBACK,
    "2002:7f00:1::1": Category.LOOPBACK,
    "2002:c0a8:101::1": Category.PRIVATE,
    "2002:808:808::1": Category.TRANSITION,
    "2001:0:4136:e378:8000:63bf:f5ff:fffe": Category.PRIVATE,
    "2001:0:808:808:0:0:f7f7:f7f7": Category.TRANSITION,
    "2600::5efe:10.0.0.1": Category.PRIVATE,
    "2600::200:5efe:169.254.169.254": Category.METADATA,
    "::8.8.8.8": Category.RESERVED,
}


@pytest.mark.parametrize(("text", "category"), NOT_PUBLIC.items())
def test_not_public(text: str, category: Category) -> None:
    assert classify(ipaddress.ip_address(text)) is category


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
)
def test_public(text: str) -> None:
    assert classify(ipaddress.ip_address(text)) is Category.PUBLIC


@given(st.integers(0, 2**32 - 1))
def test_every_wrapping_of_an_address_is_at_least_as_bad_as_the_address(number: int) -> None:
    inner = ipaddress.IPv4Address(number)
    teredo = (0x20010000 << 96) | (0x08080808 << 64) | (number ^ 0xFFFFFFFF)
    wrappings = [
        (0xFFFF << 32) | number,
        (0x64FF9B << 96) | number,
        (0x64FF9B0001 << 80) | number,
        (0x2002 << 112) | (number << 80) | 1,
        (0x2600 << 112) | (0x5EFE << 32) | number,
        teredo,
    ]
    for wrapped in map(ipaddress.IPv6Address, wrappings):
        assert inner in unwrap_addresses(wrapped)
        if classify(inner) is not Category.PUBLIC:
            assert classify(wrapped) is not Category.PUBLIC


@given(st.ip_addresses())
def test_never_laxer_than_the_standard_library(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if classify(address) is Category.PUBLIC and len(unwrap_addresses(address)) == 1:
        assert address.is_global and not address.is_multicast


def test_own_addresses_are_known() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.200", 9))
        except OSError:
            pytest.skip("this machine has no route at all")
        assert is_own(ipaddress.ip_address(probe.getsockname()[0]))


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700::1111"])
def test_addresses_of_others_are_not_own(text: str) -> None:
    assert not is_own(ipaddress.ip_address(text))
