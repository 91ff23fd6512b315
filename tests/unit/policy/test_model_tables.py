"""Policies as whole objects: defaults, order, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from warmcell.core.errors import InvalidRequest, PolicyViolation, SandboxError
from warmcell.policy.model import AccessMode, AllowedPath, NetworkRule, SandboxPolicy

READ, WRITE = AccessMode.READ_ONLY, AccessMode.READ_WRITE


def test_defaults() -> None:
    assert AllowedPath("/a") == AllowedPath("/a", READ, None)
    assert NetworkRule("a.org") == NetworkRule("a.org", (80, 443), None, None)
    assert SandboxPolicy() == SandboxPolicy((), False, (), False, {}, None)


def test_lists_become_tuples_and_words_modes() -> None:
    assert [str(mode) for mode in AccessMode] == ["readOnly", "readWrite"]
    listed: Any = ["readWrite", [1, 65535], ["GET"], ["/x"]]
    assert AllowedPath("/a", listed[0]) == AllowedPath("/a", WRITE)
    assert NetworkRule("a.org", *listed[1:]) == NetworkRule("a.org", (1, 65535), ("GET",), ("/x",))


@pytest.mark.parametrize(
    ("rule", "written"),
    [
        (NetworkRule("a.org"), "a.org"),
        (NetworkRule("a.org", (443,)), "a.org:443"),
        (NetworkRule("a.org", (80, 8080)), "a.org:80,8080"),
    ],
)
def test_rules_as_written(rule: NetworkRule, written: str) -> None:
    assert rule.as_text() == written


@pytest.mark.parametrize(
    ("paths", "merged"),
    [
        ([AllowedPath("/a"), AllowedPath("/a", WRITE)], (AllowedPath("/a", WRITE),)),
        ([AllowedPath("/a", WRITE), AllowedPath("/a")], (AllowedPath("/a", WRITE),)),
        ([AllowedPath("/a"), AllowedPath("/b")], (AllowedPath("/a"), AllowedPath("/b"))),
        ([AllowedPath("/a"), AllowedPath("/a", READ, "/b")], (AllowedPath("/a"), AllowedPath("/a", READ, "/b"))),
    ],
)
def test_the_wider_of_two_holds(paths: Any, merged: tuple[AllowedPath, ...]) -> None:
    assert SandboxPolicy(paths).allowed_paths == merged


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"allow_network": 1}, InvalidRequest, "allow_network"),
        ({"allow_process_spawn": "yes"}, InvalidRequest, "allow_process_spawn"),
        ({"allow_tracing": "yes"}, InvalidRequest, "allow_tracing"),
        ({"allow_tracing": True}, PolicyViolation, None),
        ({"limits": 5}, InvalidRequest, "limits"),
        ({"allowed_paths": ["/a"]}, InvalidRequest, "allowed_paths"),
        ({"allowed_paths": [AllowedPath("/a"), "/b"]}, InvalidRequest, "allowed_paths"),
        ({"allowed_paths": "/a"}, InvalidRequest, "allowed_paths"),
        ({"network_rules": ["a.org"]}, InvalidRequest, "network_rules"),
        ({"network_rules": 5}, InvalidRequest, "network_rules"),
        ({"allow_network": True, "network_rules": [NetworkRule("a.org")]}, PolicyViolation, None),
        ({"allowed_paths": [AllowedPath("/a"), AllowedPath("/b", READ, "/a")]}, PolicyViolation, None),
    ],
)
def test_what_is_refused(fields: dict[str, Any], error: type[SandboxError], field: str | None) -> None:
    with pytest.raises(error) as caught:
        SandboxPolicy(**fields)
    assert getattr(caught.value, "field", None) == field


@pytest.mark.parametrize(
    ("made", "error", "field"),
    [
        (lambda: AllowedPath("/a", "write"), InvalidRequest, "mode"),  # type: ignore[arg-type]
        (lambda: AllowedPath("/a", READ, "b"), PolicyViolation, None),
        (lambda: AllowedPath(5), InvalidRequest, "path"),  # type: ignore[arg-type]
        (lambda: AllowedPath("/a", READ, 5), InvalidRequest, "guest_path"),  # type: ignore[arg-type]
        (lambda: NetworkRule(5), InvalidRequest, "domain"),  # type: ignore[arg-type]
        (lambda: NetworkRule("a.org", 80), InvalidRequest, "ports"),  # type: ignore[arg-type]
        (lambda: NetworkRule("a.org", "80"), InvalidRequest, "ports"),  # type: ignore[arg-type]
        (lambda: NetworkRule("a.org", ()), PolicyViolation, None),
        (lambda: NetworkRule("a.org", (0,)), PolicyViolation, None),
        (lambda: NetworkRule("a.org", (65536,)), PolicyViolation, None),
        (lambda: NetworkRule("a.org", (True,)), PolicyViolation, None),
        (lambda: NetworkRule("a.org", methods="GET"), InvalidRequest, "methods"),  # type: ignore[arg-type]
        (lambda: NetworkRule("a.org", methods=(5,)), InvalidRequest, "methods"),  # type: ignore[arg-type]
        (lambda: NetworkRule("a.org", path_prefixes=b"/"), InvalidRequest, "path_prefixes"),  # type: ignore[arg-type]
    ],
)
def test_invalid_paths_and_rules(made: Any, error: type[SandboxError], field: str | None) -> None:
    with pytest.raises(error) as caught:
        made()
    assert getattr(caught.value, "field", None) == field
