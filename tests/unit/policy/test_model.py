"""The policy denies what it does not name, and survives JSON whole."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import InvalidRequest, PolicyViolation, SandboxError
from warmcell.core.types import Limits
from warmcell.policy.model import AccessMode, AllowedPath, NetworkRule, SandboxPolicy

name = st.text("abcxyz09-_. é", min_size=1, max_size=8).filter(lambda text: text.strip(". ") != "")
paths = st.lists(name, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
allowed_paths = st.builds(AllowedPath, paths, st.sampled_from(AccessMode), st.none() | paths)
domains = st.from_regex(r"\A(\*\.)?[a-z]{1,8}(\.[a-z]{2,4}){1,2}\Z")
rules = st.builds(
    NetworkRule,
    domains,
    st.lists(st.integers(1, 65535), min_size=1, max_size=3).map(tuple),
    st.none() | st.just(("GET", "POST")),
    st.none() | st.just(("/api",)),
)
env = st.dictionaries(
    st.from_regex(r"\A[A-Z_]{1,8}\Z"), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
)
policies = st.builds(
    SandboxPolicy,
    allowed_paths=st.lists(allowed_paths, max_size=3, unique_by=lambda item: item.target).map(tuple),
    network_rules=st.lists(rules, max_size=3).map(tuple),
    allow_process_spawn=st.booleans(),
    env=env,
    limits=st.none() | st.builds(Limits, memory_mb=st.integers(1, 4096), cpu_seconds=st.none() | st.floats(0.5, 9)),
)


@given(policies)
def test_json_round_trip_gives_back_an_equal_policy(policy: SandboxPolicy) -> None:
    assert SandboxPolicy.from_json(policy.to_json()) == policy


@pytest.mark.attack("NW-08")
@pytest.mark.parametrize("text", ["{}", SandboxPolicy().to_json(), '{"networkRules": []}', '{"allowedPaths": []}'])
@pytest.mark.claim("WC-NW-2")
def test_nothing_named_is_nothing_allowed(text: str) -> None:
    policy = SandboxPolicy.from_json(text)
    assert policy == SandboxPolicy()
    assert not (policy.allowed_paths or policy.allow_network or policy.network_rules or policy.allow_process_spawn)


def test_keys_are_camel_case() -> None:
    policy = SandboxPolicy((AllowedPath("/data", AccessMode.READ_WRITE),), limits=Limits(memory_mb=64))
    plain = json.loads(policy.to_json())
    assert plain["allowedPaths"] == [{"path": "/data", "mode": "readWrite", "guestPath": None}]
    assert {"allowNetwork", "networkRules", "allowProcessSpawn", "env"} < set(plain)
    assert plain["limits"]["memoryMb"] == 64


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "5",
        "{",
        "[" * 100_000,
        b"\xff",
        '{"allowNetworks": true}',
        '{"allow_network": true}',
        '{"allowNetwork": 1}',
        '{"allowProcessSpawn": "yes"}',
        '{"allowedPaths": "/etc"}',
        '{"allowedPaths": ["/etc"]}',
        '{"allowedPaths": [{"path": "/etc", "mode": "rw"}]}',
        '{"allowedPaths": [{"path": "/etc", "writable": true}]}',
        '{"allowedPaths": [{"mode": "readOnly"}]}',
        '{"allowedPaths": [{"path": 5}]}',
        '{"networkRules": {"domain": "x.org"}}',
        '{"networkRules": [{"domain": "x.org", "ports": 80}]}',
        '{"networkRules": [{"domain": "x.org", "ports": ["80"]}]}',
        '{"networkRules": [{"domain": "x.org", "ports": []}]}',
        '{"networkRules": [{"domain": "x.org", "methods": 5}]}',
        '{"allowedPaths": [{"path": "/data", "guestPath": "/code"}]}',
        '{"limits": null, "limits": {"memoryMb": 64}}',
        '{"env": {"A": 1}}',
        '{"env": []}',
        '{"limits": {"memoryMb": 0}}',
        '{"limits": {"memoryMb": true}}',
        '{"limits": {"cpuSeconds": NaN}}',
        '{"limits": {"memoryGb": 1}}',
        '{"limits": 5}',
    ],
    ids=lambda text: str(text)[:40],
)
@pytest.mark.claim("WC-NW-2")
def test_malformed_policies_are_refused(text: str | bytes) -> None:
    with pytest.raises(SandboxError):
        SandboxPolicy.from_json(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["allowedPaths", "allowNetwork", "networkRules", "env", "limits", "path", "domain", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_a_policy_or_a_typed_error(value: Any) -> None:
    try:
        policy = SandboxPolicy.from_json(json.dumps(value))
    except SandboxError:
        return
    assert SandboxPolicy.from_json(policy.to_json()) == policy


@pytest.mark.parametrize("path", ["", "relative", "./x", "~", "/a/../etc", "/..", "a\0b", "/a\0b", "C:\\x"])
def test_paths_are_absolute_and_straight(path: str) -> None:
    with pytest.raises((PolicyViolation, InvalidRequest)):
        AllowedPath(path)
    with pytest.raises((PolicyViolation, InvalidRequest)):
        AllowedPath("/fine", guest_path=path)


@pytest.mark.parametrize(
    ("path", "kept"), [("//a", "/a"), ("/a/", "/a"), ("/a/./b", "/a/b"), ("/", "/"), ("/a//b", "/a/b")]
)
def test_paths_have_one_spelling(path: str, kept: str) -> None:
    assert AllowedPath(path).path == kept


def test_paths_need_not_be_utf_8_but_are_passable() -> None:
    path = os.fsdecode(b"/a/\xff")
    policy = SandboxPolicy((AllowedPath(path),))
    assert SandboxPolicy.from_json(policy.to_json()) == policy
    assert policy.allowed_paths[0].target == path
    with pytest.raises(InvalidRequest, match="surrogate"):
        AllowedPath(path + "\ud800")


@pytest.mark.parametrize(
    "domain",
    ["", " ", "a b", "http://x.org", "x.org/p", "u@x.org", "x.org:80", "*", "*.", "a*b", "x\\y", "x#y", "x\0y"],
)
def test_domains_that_are_not_domains(domain: str) -> None:
    with pytest.raises((PolicyViolation, InvalidRequest)):
        NetworkRule(domain)


@pytest.mark.parametrize("port", [0, -1, 65536, True, "80", 1.5, None])
def test_ports_are_ports(port: object) -> None:
    with pytest.raises(PolicyViolation):
        NetworkRule("x.org", (port,))  # type: ignore[arg-type]


def test_contradictions_are_refused_so_that_nothing_widens_silently() -> None:
    with pytest.raises(PolicyViolation, match="allow_network"):
        SandboxPolicy(allow_network=True, network_rules=(NetworkRule("x.org"),))
    with pytest.raises(PolicyViolation, match="both"):
        SandboxPolicy((AllowedPath("/a"), AllowedPath("/b", guest_path="/a")))


def test_the_same_path_twice_is_the_same_path() -> None:
    assert SandboxPolicy((AllowedPath("/a"), AllowedPath("/a/"))).allowed_paths
