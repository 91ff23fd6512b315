"""The SS attacks: what a guest tries, seen from the servers and the sockets that must hear nothing of it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.net.servers import StubResolver, policy_for, reply, serving

from warmcell.core.errors import FetchFailed
from warmcell.net.fetch.messages import FetchRequest
from warmcell.net.fetch.safe_client import SafeClient
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import IPAddress

PUBLIC = "93.184.216.34"


class Dialled:
    """Stands where the network would begin: remembers what was dialled and lets nothing through."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    async def __call__(self, addresses: Sequence[IPAddress], port: int) -> socket.socket:
        self.addresses += [str(address) for address in addresses]
        raise ConnectionRefusedError("no network in this test")


async def fetch_refused_error(client: SafeClient, request: FetchRequest | str) -> FetchFailed:
    with pytest.raises(FetchFailed) as caught:
        await client.fetch(request)
    return caught.value


LITERALS = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "169.254.1.1",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "198.18.0.1",
    "168.63.129.16",
    "240.0.0.1",
    "[::1]",
    "[::]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[fec0::1]",
    "[ff02::1]",
    "[2001:db8::1]",
]
WRAPPED = [
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:169.254.169.254]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::10.0.0.1]",
    "[2002:7f00:1::]",
    "[2001:0:0:0:0:0:f5ff:fffe]",
    "[2600::5efe:10.0.0.1]",
]


@pytest.mark.attack("SS-01")
@pytest.mark.parametrize("host", [*LITERALS, "localhost"])
async def test_private_literals_are_blocked_before_connect(host: str) -> None:
    dialled = Dialled()
    for domains in (("*",), ("*", "example.com"), ("localhost",)):
        client = SafeClient(FetchPolicy(domains), dial=dialled)
        assert (await fetch_refused_error(client, f"http://{host}/")).reason == "refused"
    assert dialled.addresses == []


@pytest.mark.attack("SS-01")
async def test_the_same_addresses_behind_a_name_are_blocked(resolver: StubResolver) -> None:
    dialled = Dialled()
    client = SafeClient(FetchPolicy(("*.test",)), resolver=resolver, dial=dialled)
    for number, host in enumerate(LITERALS + WRAPPED):
        resolver.add(f"n{number}.test", [host.strip("[]")])
        assert (await fetch_refused_error(client, f"http://n{number}.test/")).reason == "refused", host
    assert dialled.addresses == []


@pytest.mark.attack("SS-01")
async def test_a_listener_on_this_machine_hears_nothing() -> None:
    async with serving(reply()) as server:
        client = SafeClient(FetchPolicy((f"*:{server.port}",)))
        for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]", socket.gethostname()):
            with pytest.raises(FetchFailed):
                await client.fetch(f"http://{host}:{server.port}/")
    assert server.connections == 0


@pytest.mark.attack("SS-02")
@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "017700000001", "0x7f.0.0.1", "127.0.0.01"]
)
async def test_odd_encodings_are_blocked(host: str) -> None:
    async with serving(reply()) as server:
        client = SafeClient(FetchPolicy(("*",), allowed_ports=(server.port,)))
        await fetch_refused_error(client, f"http://{host}:{server.port}/")
    assert server.connections == 0


@pytest.mark.attack("SS-02")
async def test_odd_encodings_in_a_resolver_answer_are_blocked(resolver: StubResolver) -> None:
    dialled = Dialled()
    client = SafeClient(FetchPolicy(("*.test",)), resolver=resolver, dial=dialled)
    for number, answer in enumerate(["127.1", "0x7f000001", "0", "127.0.0.01", "::ffff:127.0.0.1", "fe80::1%lo"]):
        resolver.add(f"n{number}.test", [answer])
        await fetch_refused_error(client, f"http://n{number}.test/")
    assert dialled.addresses == []


@pytest.mark.attack("SS-03")
@pytest.mark.parametrize("host", WRAPPED)
async def test_addresses_wrapped_in_ipv6_are_blocked(host: str, resolver: StubResolver) -> None:
    dialled = Dialled()
    resolver.add("wrapped.test", [host.strip("[]")])
    # Even where the wrapped form itself was allowed as a name would be, only the very address counts.
    client = SafeClient(FetchPolicy(("*", "127.0.0.1", "10.0.0.1")), resolver=resolver, dial=dialled)
    assert (await fetch_refused_error(client, f"http://{host}/")).reason == "refused"
    assert (await fetch_refused_error(client, "http://wrapped.test/")).reason == "refused"
    assert dialled.addresses == []


@pytest.mark.attack("SS-06")
@pytest.mark.parametrize("private", ["127.0.0.1", "10.1.1.1", "169.254.169.254", "::1", "fd00::1"])
async def test_a_name_or_cname_chain_that_ends_in_a_private_address(private: str, resolver: StubResolver) -> None:
    # A resolver follows CNAMEs itself; what it gives back at the end of the chain is what is judged.
    dialled = Dialled()
    resolver.add("cname.example.com", [private])
    client = SafeClient(FetchPolicy(("*.example.com",)), resolver=resolver, dial=dialled)
    error = await fetch_refused_error(client, "http://cname.example.com/")
    assert error.reason == "refused" and private in error.message
    assert dialled.addresses == []


@pytest.mark.attack("SS-06")
@pytest.mark.parametrize("order", [0, 1])
async def test_one_bad_record_among_good_ones_refuses_them_all(order: int, resolver: StubResolver) -> None:
    dialled = Dialled()
    records = [PUBLIC, "127.0.0.1"]
    resolver.add("mixed.test", records if order else records[::-1])
    client = SafeClient(FetchPolicy(("mixed.test",)), resolver=resolver, dial=dialled)
    assert (await fetch_refused_error(client, "http://mixed.test/")).reason == "refused"
    assert dialled.addresses == []


@pytest.mark.attack("SS-07")
async def test_rebinding_dials_the_address_that_was_judged(resolver: StubResolver) -> None:
    dialled = Dialled()
    resolver.add("rebind.test", [PUBLIC], ["127.0.0.1"])
    client = SafeClient(FetchPolicy(("rebind.test",)), resolver=resolver, dial=dialled)
    assert (await fetch_refused_error(client, "http://rebind.test/")).reason == "connect"
    assert dialled.addresses == [PUBLIC]
    assert resolver.asked == ["rebind.test"]
    assert (await fetch_refused_error(client, "http://rebind.test/")).reason == "refused"
    assert dialled.addresses == [PUBLIC]


@pytest.mark.attack("SS-07")
async def test_rebinding_between_redirects_is_judged_again(resolver: StubResolver) -> None:
    async with serving(
        lambda r, w: _write(w, f"HTTP/1.1 302 F\r\nLocation: http://rebind.test:{port}/\r\n\r\n")
    ) as server:
        port = server.port
        resolver.add("rebind.test", ["127.0.0.1"], ["127.0.0.2"])
        client = SafeClient(policy_for(server, names=["rebind.test"]), resolver=resolver)
        assert (await fetch_refused_error(client, f"http://rebind.test:{server.port}/")).reason == "refused"
    assert server.connections == 1


async def _write(writer: asyncio.StreamWriter, text: str) -> None:
    writer.write(text.encode())
    await writer.drain()


@pytest.mark.attack("SS-07")
async def test_this_machines_own_public_address_is_blocked(resolver: StubResolver) -> None:
    # As if the machine had that public address: the kernel says so, not a table.
    from warmcell.net.connect.admission import Gate
    from warmcell.net.rules.rule_book import compile_rules

    dialled = Dialled()
    resolver.add("me.test", [PUBLIC])
    policy = FetchPolicy(("me.test",))
    gate = Gate(compile_rules(policy), resolver=resolver, is_own_address=lambda a: a == ipaddress.ip_address(PUBLIC))
    client = SafeClient(policy, gate=gate, dial=dialled)
    assert "this machine" in (await fetch_refused_error(client, "http://me.test/")).message
    assert dialled.addresses == []


CONFUSED = [
    "http://allowed.test@evil.test/",
    "http://evil.test#@allowed.test/",
    "http://evil.test?@allowed.test/",
    "http://allowed.test\\@evil.test/",
    "http://evil.test\\@allowed.test/",
    "http://allowed.test%2eevil.test/",
    "http:///127.0.0.1/",
    "http://allowed.test:80:443/",
    "http://allowed.test:80@evil.test/",
    "http://[allowed.test]/",
    "http://allowed.test\t.evil.test/",
    "http://allowed.test%09.evil.test/",
    "http://evil.test;allowed.test/",
    "http://evil.test,allowed.test/",
    "http://allowed.test&@evil.test/",
]


@pytest.mark.attack("SS-11")
@pytest.mark.parametrize("url", CONFUSED)
async def test_parser_confusion_dials_nothing(url: str, resolver: StubResolver) -> None:
    dialled = Dialled()
    resolver.add("allowed.test", [PUBLIC]).add("evil.test", ["6.6.6.6"])
    client = SafeClient(FetchPolicy(("allowed.test",)), resolver=resolver, dial=dialled)
    assert (await fetch_refused_error(client, url)).reason in ("invalid", "refused")
    assert dialled.addresses == [] and resolver.asked == []


_PIECES = st.sampled_from(
    [
        "allowed.test",
        "evil.test",
        "@",
        ":",
        "/",
        "//",
        "\\",
        "#",
        "?",
        "%2e",
        "%00",
        ".",
        "80",
        ":80",
        "[",
        "]",
        "\t",
        " ",
        "。",
        "ﬁ",
        "127.0.0.1",
        "::1",
        "ALLOWED.TEST",
        "xn--",
        "&",
        ";",
        "%",
    ]
)


@pytest.mark.attack("SS-11")
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_PIECES, max_size=8).map(lambda parts: "http://" + "".join(parts)))
def test_the_host_that_was_judged_is_the_host_that_is_dialled(url: str) -> None:
    resolver, dialled = StubResolver().add("allowed.test", [PUBLIC]).add("evil.test", ["6.6.6.6"]), Dialled()
    client = SafeClient(FetchPolicy(("allowed.test",)), resolver=resolver, dial=dialled)
    with pytest.raises(FetchFailed):
        asyncio.run(client.fetch(url))
    assert set(resolver.asked) <= {"allowed.test"}
    assert set(dialled.addresses) <= {PUBLIC}


@pytest.mark.attack("SS-12")
async def test_suffix_tricks_dial_nothing(resolver: StubResolver) -> None:
    dialled = Dialled()
    client = SafeClient(FetchPolicy(("*.example.com",)), resolver=resolver, dial=dialled)
    for host in ("evilexample.com", "example.com.evil.com", "example.com", "EXAMPLE.COM.", "xexample.com."):
        resolver.add(host.lower().rstrip("."), [PUBLIC])
        assert (await fetch_refused_error(client, f"http://{host}/")).reason == "refused"
    assert resolver.asked == []
    for host in ("a.example.com", "a.b.example.com", "A.Example.Com."):
        resolver.add(host.lower().rstrip("."), [PUBLIC])
        assert (await fetch_refused_error(client, f"http://{host}/")).reason == "connect"
    assert dialled.addresses == [PUBLIC] * 3


INJECTIONS = [
    FetchRequest("http://site.test:{port}/\r\nX-Injected: 1"),
    FetchRequest("http://site.test:{port}/\0"),
    FetchRequest("http://site.test:{port}/\tx"),
    FetchRequest("http://site.test:{port}/", "GET\r\nX-Injected: 1"),
    FetchRequest("http://site.test:{port}/", "GET / HTTP/1.1\r\nX"),
    FetchRequest("http://site.test:{port}/", "G\0ET"),
    FetchRequest("http://site.test:{port}/", "G\tET"),
    FetchRequest("http://site.test:{port}/", ""),
    FetchRequest("http://site.test:{port}/", 7),  # type: ignore[arg-type]
    *[
        FetchRequest("http://site.test:{port}/", headers=headers)  # type: ignore[arg-type]
        for headers in (
            {"X": "a\r\nX-Injected: 1"},
            {"X": "a\nX-Injected: 1"},
            {"X": "a\rX-Injected: 1"},
            {"X": "a\0b"},
            {"X": "a\tb"},
            {"X": "a\u010ab"},
            {"X\r\nX-Injected": "1"},
            {"X: a": "b"},
            {"X ": "b"},
            {"": "b"},
            {"X\0": "b"},
            {"X\t": "b"},
            {"Ⓧ": "b"},
            {"Host": "evil.test"},
            {"hOsT": "evil.test"},
            {"Content-Length": "5"},
            {"Transfer-Encoding": "chunked"},
            {"Connection": "keep-alive"},
            {"Upgrade": "h2c"},
            {"TE": "trailers"},
            {"Expect": "100-continue"},
            {"Proxy-Authorization": "x"},
            {"X": 1},
            {f"X-{n}": "y" for n in range(200)},
            {"X": "y" * 100_000},
        )
    ],
]


@pytest.mark.attack("SS-14")
async def test_injection_is_refused_before_any_byte_is_sent(resolver: StubResolver) -> None:
    async with serving(reply()) as server:
        client = SafeClient(policy_for(server), resolver=resolver)
        for request in INJECTIONS:
            there = FetchRequest(request.url.format(port=server.port), request.method, request.headers)
            assert (await fetch_refused_error(client, there)).reason in ("invalid", "refused"), request
    assert server.connections == 0


@pytest.mark.attack("SS-15")
@pytest.mark.parametrize("scheme", ["file", "gopher", "ftp", "data", "unix", "ws", "jar", "blob", "http+unix", "FILE"])
async def test_other_schemes_are_refused(scheme: str, resolver: StubResolver) -> None:
    dialled = Dialled()
    client = SafeClient(FetchPolicy(("*", "site.test")), resolver=resolver, dial=dialled)
    for rest in ("://site.test/", ":///etc/passwd", ":site.test", "://site.test:80/x"):
        assert (await fetch_refused_error(client, scheme + rest)).reason == "invalid"
    assert dialled.addresses == [] and resolver.asked == []


@pytest.mark.attack("SS-19")
async def test_deny_beats_allow_on_the_wire(resolver: StubResolver) -> None:
    dialled = Dialled()
    resolver.add("x.example.com", [PUBLIC]).add("y.example.com", [PUBLIC]).add("z.example.com", ["1.2.3.4"])
    policy = FetchPolicy(("*.example.com",), blocked_domains=("x.example.com", "1.2.3.4"))
    client = SafeClient(policy, resolver=resolver, dial=dialled)
    assert (await fetch_refused_error(client, "http://x.example.com/")).reason == "refused"
    assert (await fetch_refused_error(client, "http://X.EXAMPLE.COM./")).reason == "refused"
    assert (await fetch_refused_error(client, "http://y.example.com:22/")).reason == "refused"
    assert (await fetch_refused_error(client, f"http://{PUBLIC}/")).reason == "refused"
    assert resolver.asked == []
    assert (await fetch_refused_error(client, "http://z.example.com/")).reason == "refused"
    assert dialled.addresses == []
    assert (await fetch_refused_error(client, "http://y.example.com/")).reason == "connect"


@pytest.mark.attack("NW-08")
@pytest.mark.parametrize("domains", [(), [], None])
async def test_an_empty_allow_list_reaches_nothing(domains: object, resolver: StubResolver) -> None:
    dialled = Dialled()
    async with serving(reply()) as server:
        client = SafeClient(FetchPolicy(domains, deny_private_ips=False), resolver=resolver, dial=dialled)  # type: ignore[arg-type]
        for host in ("site.test", "localhost", "127.0.0.1", PUBLIC):
            assert (await fetch_refused_error(client, f"http://{host}:{server.port}/")).reason == "refused"
    assert dialled.addresses == [] and resolver.asked == [] and server.connections == 0
