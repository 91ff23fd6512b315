"""Results list the connections of their own run, in every form in which results travel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.net.in_cage import TALK, World, world
from tests.net.site import Site

from warmcell import (
    Connection,
    ExecRequest,
    ExecResult,
    Language,
    MemoryExceeded,
    ProcessBackend,
    Sandbox,
    SandboxPolicy,
    SandboxPolicyBuilder,
)
from warmcell.interfaces.client.wire import result_from
from warmcell.sandbox.tools.answers import success

REACHED = Connection(1.5e9, "site.test", 443, 10, 20, "rule: site.test", is_allowed=True)
REFUSED = Connection(1.5e9, "other.test", 443, 0, 0, "a private address", is_allowed=False)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    outside: World
    with world(monkeypatch) as outside:
        yield outside.site(tmp_path / "site")


def allow(port: int, *names: str) -> SandboxPolicy:
    """These names, which are names of this host."""
    builder = SandboxPolicyBuilder().allow_process_spawn().allow_domain("127.0.0.1", [port])
    for name in names:
        builder = builder.allow_domain(name, [port])
    return builder.build()


def get(port: int, *names: str, then: str = "") -> str:
    return f"{TALK}\nfor name in {names!r}:\n    print(status(request(f'http://{{name}}:{port}/hello.txt')))\n{then}"


def summary(result: ExecResult | None) -> list[tuple[str, bool]]:
    assert result is not None
    return [(item.host, item.is_allowed) for item in result.connections]


def test_each_run_of_a_sandbox_has_its_own(site: Site) -> None:
    with Sandbox(policy=allow(site.port, "site.test")) as sandbox:
        both = sandbox.run(get(site.port, "site.test", "other.test"))
        nothing = sandbox.run("print(1)")
        with pytest.raises(MemoryExceeded) as caught:
            sandbox.run(get(site.port, "site.test", then="kept = [bytearray(2 ** 24) for _ in range(2 ** 16)]"))
        assert [*both.connections, *caught.value.result.connections] == sandbox.connections()  # type: ignore[union-attr]
    assert summary(both) == [("site.test", True), ("other.test", False)]
    assert both.connections[0].bytes_sent > 40 and both.connections[0].bytes_received > 40
    assert summary(caught.value.result) == [("site.test", True)]
    assert nothing.connections == () and "connections" not in nothing.to_dict()


async def test_runs_at_the_same_time_have_their_own(site: Site) -> None:
    backend = ProcessBackend.with_sandbox(policy=allow(site.port, "site.test", "other.test"))
    try:
        requests = [
            ExecRequest(Language.PYTHON, get(site.port, *[name] * 3), 300) for name in ("site.test", "other.test")
        ]
        one, other = await asyncio.gather(*map(backend.execute, requests))
    finally:
        await backend.aclose()
    assert (summary(one), summary(other)) == ([("site.test", True)] * 3, [("other.test", True)] * 3)


def test_the_json_of_a_result() -> None:
    result = ExecResult("out\n", connections=(REACHED, REFUSED))
    plain = json.loads(result.to_json())
    assert plain["connections"][0] == {
        **{"time": 1.5e9, "host": "site.test", "port": 443, "bytes_sent": 10, "bytes_received": 20},
        **{"rule": "rule: site.test", "is_allowed": True},
    }
    assert result_from(plain) == result
    without = ExecResult("out\n")
    assert "connections" not in without.to_dict() and result_from(without.to_dict()) == without


def test_a_model_sees_what_was_reached_and_no_reasons() -> None:
    """A rule may tell what a name resolves to, which guests must not learn."""
    reached = {"host": "site.test", "port": 443, "sent": 10, "received": 20}
    assert success(ExecResult(connections=(REFUSED, REACHED)))["connections"] == [reached]
    assert "connections" not in success(ExecResult(connections=(REFUSED,)))
