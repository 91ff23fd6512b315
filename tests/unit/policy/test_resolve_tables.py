"""What a policy becomes on a host: the whole object, for each enforcer and each thing a policy can say."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from warmcell.core.errors import EnforcerUnavailable, PolicyViolation, SandboxError
from warmcell.core.records import replace
from warmcell.core.types import EffectiveLimits, Enforced
from warmcell.policy.model import AccessMode, AllowedPath, NetworkRule, SandboxPolicy
from warmcell.policy.resolve import DEFAULT_POLICY, EffectivePolicy, HostCapabilities, HostLayout, ResolvedPath, resolve

HOST = HostCapabilities(
    user_namespaces=True,
    landlock_abi=5,
    seccomp=True,
    cgroup="cgroup v2",
    cpu_share=True,
    reasons=(("seccomp", "no", "do"), ("landlock_abi", "old", ""), ("openat2", "no openat2", "")),
)
NO_CGROUP = replace(HOST, cgroup=None, cpu_share=False)
LIMITS = EffectiveLimits(memory_mb=64, disk_mb=9)
RULES = (NetworkRule("pypi.org"),)
DATA = ResolvedPath("/srv/data", "/data", False, "1:2")
READ = SandboxPolicy(allowed_paths=(AllowedPath("/srv/data", guest_path="/data"),))
WRITE = SandboxPolicy(allowed_paths=(AllowedPath("/srv/data", AccessMode.READ_WRITE, "/data"),))

IN_NAMESPACES = Enforced(
    isolation_class="process+sandbox",
    enforcer="native",
    timeout="supervisor",
    memory="cgroup v2",
    cpu="cgroup v2 + supervisor",
    processes="cgroup v2",
    open_files="rlimit per process",
    disk="sized tmpfs",
    output="supervisor",
    network="network namespace",
    filesystem_read="mount namespace + Landlock",
    filesystem_write="mount namespace + Landlock",
    environment="supervisor",
    syscalls="seccomp",
)
BY_LANDLOCK = replace(
    IN_NAMESPACES,
    isolation_class="landlock",
    enforcer="landlock",
    disk="supervisor + rlimit",
    network="seccomp",
    filesystem_read="Landlock",
    filesystem_write="Landlock",
)
BARE = replace(
    BY_LANDLOCK,
    isolation_class="process",
    enforcer=None,
    network=None,
    filesystem_read=None,
    filesystem_write=None,
    syscalls=None,
)
BY_BUBBLEWRAP = replace(
    BARE,
    isolation_class="process+sandbox",
    enforcer="bubblewrap",
    network="bubblewrap",
    filesystem_read="bubblewrap",
    filesystem_write="bubblewrap",
)

NATIVE = EffectivePolicy(
    isolation="namespaces",
    network="none",
    network_rules=(),
    paths=(),
    allow_spawn=False,
    env={},
    limits=LIMITS,
    uses_cgroup=True,
    enforced=IN_NAMESPACES,
)
LANDLOCK = replace(NATIVE, isolation="landlock", enforced=BY_LANDLOCK)
PROCESS = replace(NATIVE, isolation="none", network="host", allow_spawn=True, enforced=BARE)
BUBBLEWRAP = replace(PROCESS, enforced=BY_BUBBLEWRAP)
UNCOUNTED = {"memory": "supervisor", "cpu": "supervisor", "processes": None}

PROXIED = replace(NATIVE, network="proxy", enforced=replace(IN_NAMESPACES, network="network namespace + proxy"))
OPEN = SandboxPolicy(allow_network=True)
SPAWN = SandboxPolicy(allow_process_spawn=True, env={"A": "b"})


@pytest.mark.parametrize(
    ("enforcer", "policy", "effective"),
    [
        ("native", SandboxPolicy(), NATIVE),
        ("native", SPAWN, replace(NATIVE, allow_spawn=True, env={"A": "b"})),
        ("native", OPEN, replace(NATIVE, network="host", enforced=replace(IN_NAMESPACES, network=None))),
        ("native", SandboxPolicy(network_rules=RULES), replace(PROXIED, network_rules=RULES)),
        ("landlock", SandboxPolicy(), LANDLOCK),
        ("landlock", SPAWN, replace(LANDLOCK, allow_spawn=True, env={"A": "b"})),
        ("landlock", OPEN, replace(LANDLOCK, network="host", enforced=replace(BY_LANDLOCK, network=None))),
        (None, SandboxPolicy(), PROCESS),
        (None, SPAWN, replace(PROCESS, env={"A": "b"})),
        (None, OPEN, PROCESS),
        ("bubblewrap", SandboxPolicy(), BUBBLEWRAP),
        ("bubblewrap", OPEN, replace(BUBBLEWRAP, enforced=replace(BY_BUBBLEWRAP, network=None))),
    ],
)
def test_what_a_policy_says(enforcer: str | None, policy: SandboxPolicy, effective: EffectivePolicy) -> None:
    assert resolve(policy, (), LIMITS, HOST, enforcer) == effective


@pytest.mark.parametrize(
    ("enforcer", "effective"), [("native", NATIVE), ("landlock", LANDLOCK), (None, PROCESS), ("bubblewrap", BUBBLEWRAP)]
)
def test_without_a_cgroup(enforcer: str | None, effective: EffectivePolicy) -> None:
    expected = replace(effective, uses_cgroup=False, enforced=replace(effective.enforced, **UNCOUNTED))
    assert resolve(SandboxPolicy(), (), LIMITS, NO_CGROUP, enforcer) == expected


def test_the_kernel_counts_processes_by_namespace_where_no_cgroup_does() -> None:
    counted = replace(IN_NAMESPACES, **{**UNCOUNTED, "processes": "rlimit per namespace"})
    host = replace(NO_CGROUP, process_limit_per_namespace=True)
    assert resolve(SandboxPolicy(), (), LIMITS, host, "native") == replace(NATIVE, uses_cgroup=False, enforced=counted)
    with_cgroup = replace(HOST, process_limit_per_namespace=True)
    assert resolve(SandboxPolicy(), (), LIMITS, with_cgroup, "native") == NATIVE


@pytest.mark.parametrize(("policy", "disk"), [(READ, "sized tmpfs"), (WRITE, "sized tmpfs + supervisor")])
def test_paths_of_the_host(policy: SandboxPolicy, disk: str) -> None:
    path = replace(DATA, writable=policy is WRITE)
    expected = replace(NATIVE, paths=(path,), enforced=replace(IN_NAMESPACES, disk=disk))
    assert resolve(policy, (path,), LIMITS, HOST, "native") == expected
    assert resolve(policy, (path,), LIMITS, HOST, "landlock") == replace(LANDLOCK, paths=(path,))


def test_a_fetch_policy_means_the_proxy() -> None:
    assert resolve(SandboxPolicy(), (), LIMITS, HOST, "native", has_egress=True) == PROXIED


@pytest.mark.parametrize("enforcer", ["native", "landlock", None, "bubblewrap"])
def test_a_share_of_the_processors_needs_the_controller(enforcer: str | None) -> None:
    limits = replace(LIMITS, cpus=0.5)
    assert resolve(SandboxPolicy(), (), limits, HOST, enforcer).limits == limits
    with pytest.raises(EnforcerUnavailable, match=f"{enforcer or 'process'}.*cpu controller") as caught:
        resolve(SandboxPolicy(), (), limits, replace(HOST, cpu_share=False), enforcer)
    assert caught.value.hint == "leave Limits(cpus=...) out, run as root, or run below a delegated cgroup"


@pytest.mark.parametrize(
    ("enforcer", "missing", "message"),
    [
        ("native", {"user_namespaces": False}, "native: not available on this host"),
        ("native", {"seccomp": False}, r"native: no \(hint: do\)"),
        ("native", {"landlock_abi": 0}, "native: old .*doctor"),
        ("native", {"missing_calls": ("openat2",)}, "native: no openat2"),
        ("bubblewrap", {"missing_calls": ("pidfd_open",)}, "bubblewrap: not available"),
        ("landlock", {"landlock_abi": 0}, "landlock: old"),
        ("landlock", {"seccomp": False}, "landlock: no "),
        ("landlock", {"landlock_abi": 2}, "landlock.*version 2 of Landlock, which cannot restrict"),
    ],
)
def test_what_a_host_cannot_do_is_refused(enforcer: str, missing: dict[str, bool | int], message: str) -> None:
    with pytest.raises(EnforcerUnavailable, match=message):
        resolve(SandboxPolicy(), (), LIMITS, replace(HOST, **missing), enforcer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("enforcer", "lacking", "effective"),
    [
        ("native", {"landlock_abi": 1}, NATIVE),
        ("landlock", {"landlock_abi": 3}, LANDLOCK),
        ("landlock", {"user_namespaces": False}, LANDLOCK),
        (None, {"user_namespaces": False, "landlock_abi": 0, "seccomp": False}, PROCESS),
        ("bubblewrap", {"user_namespaces": False, "landlock_abi": 0, "seccomp": False}, BUBBLEWRAP),
    ],
)
def test_what_is_not_needed_may_be_missing(
    enforcer: str | None, lacking: dict[str, bool | int], effective: EffectivePolicy
) -> None:
    host = replace(HOST, **lacking)  # type: ignore[arg-type]
    assert resolve(SandboxPolicy(), (), LIMITS, host, enforcer) == effective


@pytest.mark.parametrize(
    ("enforcer", "policy", "has_egress", "error"),
    [
        ("native", OPEN, True, PolicyViolation),
        ("landlock", SandboxPolicy(network_rules=RULES), False, EnforcerUnavailable),
        ("landlock", SandboxPolicy(), True, EnforcerUnavailable),
        ("bubblewrap", SandboxPolicy(network_rules=RULES), False, EnforcerUnavailable),
        (None, SandboxPolicy(network_rules=RULES), False, EnforcerUnavailable),
        (None, READ, False, EnforcerUnavailable),
    ],
)
def test_what_no_enforcer_supports_is_refused(
    enforcer: str | None, policy: SandboxPolicy, has_egress: bool, error: type[SandboxError]
) -> None:
    with pytest.raises(error) as refused:
        resolve(policy, (), LIMITS, HOST, enforcer, has_egress)
    assert refused.value.hint


def test_landlock_cannot_narrow_what_it_gave() -> None:
    wide, narrow = ResolvedPath("/srv", "/srv", True, "1:1"), ResolvedPath("/srv/a", "/a", False, "1:2")
    for paths in ((wide, narrow), (narrow, wide)):
        with pytest.raises(EnforcerUnavailable, match="'/srv/a' read-only inside '/srv'"):
            resolve(WRITE, paths, LIMITS, HOST, "landlock")
        enforced = replace(IN_NAMESPACES, disk="sized tmpfs + supervisor")
        expected = replace(NATIVE, paths=paths, enforced=enforced)
        assert resolve(SandboxPolicy(), paths, LIMITS, HOST, "native") == expected
    apart = (replace(wide, source="/srv/b"), narrow)
    assert resolve(WRITE, apart, LIMITS, HOST, "landlock") == replace(LANDLOCK, paths=apart)


def test_defaults_without_settings_or_measurements() -> None:
    assert SandboxPolicy((), False, (), True, {}, None) == DEFAULT_POLICY
    assert HostCapabilities() == HostCapabilities(False, 0, False, None, False, False, ())
    assert HostLayout() == HostLayout(("/usr",), (), ())


@pytest.mark.parametrize("record", [NATIVE, DATA, HOST, HostLayout(), READ, READ.allowed_paths[0], RULES[0]])
def test_decisions_are_immutable(record: Any) -> None:
    for name in record.__slots__:
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, None)
