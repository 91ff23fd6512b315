"""The denials of a run, with rule and remedy, from what the cage noted. Pure, except for the collector."""

from __future__ import annotations

from warmcell.core.types import Denial, EffectiveLimits
from warmcell.policy.places import is_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from warmcell.core.types import Connection
    from warmcell.runner.outcome import Exit, KernelUsage

MOST_DENIALS = 64
_OF_TRACERS = ("ptrace", "process_vm_readv", "process_vm_writev")


class DenialCollector:
    """Collects the distinct denials of a run, at most 64, and its connections if it has a network. Thread-safe."""

    def __init__(self) -> None:
        self._denials: dict[Denial, None] = {}
        self.connections: Callable[[], Iterable[Connection]] = tuple

    def add(self, denial: Denial) -> None:
        if len(self._denials) < MOST_DENIALS:
            self._denials.setdefault(denial)

    def all(self) -> list[Denial]:
        return list(self._denials)


def explain(end: Exit, kernel: KernelUsage, limits: EffectiveLimits, allowed_targets: tuple[str, ...]) -> list[Denial]:
    """All denials of a run, in terms of the policy."""
    has_notes = end.denials or end.verdict or end.stop_reason or end.limits_met
    if not (has_notes or kernel.memory_kills or kernel.process_refusals):
        return []  # the usual case
    found = denials_from(end.denials, allowed_targets)
    if end.verdict == "memory" or kernel.memory_kills:
        found.append(_limit("memory", f"more than {limits.memory_mb} MB", "memoryMb", "memory_mb"))
    if end.verdict == "gpu memory":
        what = f"more than {limits.gpu_memory_mb} MB on one device"
        found.append(_limit("gpu memory", what, "gpuMemoryMb", "gpu_memory_mb"))
    if end.is_over_cpu:
        found.append(_limit("cpu", f"more than {limits.cpu_seconds:g} s of cpu time", "cpuSeconds", "cpu_seconds"))
    if end.verdict == "disk" or "disk" in end.limits_met:
        found.append(_limit("disk", f"more than {limits.disk_mb} MB", "diskMb", "disk_mb"))
    if end.verdict == "descriptors":
        what = "more than a guest's share of pipes, watched descriptors or descriptors in flight"
        found.append(
            Denial("descriptors", what, "shared quotas", "no policy can raise it: all guests share the host's quota")
        )
    if kernel.process_refusals or "processes" in end.limits_met:
        found.append(_limit("processes", f"more than {limits.processes} processes", "processes", "processes"))
    return found


def denials_from(noted: list[list[str]], allowed_targets: tuple[str, ...]) -> list[Denial]:
    """Denials for the (kind, object) pairs that the cage noted, without files that the policy allows."""
    found = [_denial(kind, what) for kind, what in noted if kind != "path"]
    return found + [
        _denial("path", what)
        for kind, what in noted
        if kind == "path" and what.startswith("/") and not any(is_within(what, target) for target in allowed_targets)
    ]


def _denial(kind: str, what: str) -> Denial:
    if kind == "network":
        hint = "allow it with allow_domain(name, ports); allowed names are reached through the proxy in HTTPS_PROXY"
        return Denial(kind, what, "networkRules", hint)
    if kind == "process":
        hint = "allow new processes with allow_process_spawn() in the policy"
        return Denial(kind, what, "allowProcessSpawn", hint)
    if what in _OF_TRACERS:
        return Denial(kind, what, "allowTracing", "allow debuggers with allow_tracing() in the policy")
    if kind == "path":
        return _denial_of_path(what)
    return Denial(kind, what, "system calls", "no policy allows this call; the program must do without it")


def _denial_of_path(path: str) -> Denial:
    from warmcell.policy.gpu import is_gpu_node

    if is_gpu_node(path):
        hint = "allow it with allow_gpu(), Sandbox(gpus=...) or `warmcell run --gpu`"
        return Denial("gpu", path, "gpus", hint)
    return Denial("path", path, "allowedPaths", f"allow it with allow_read({path!r}) or allow_read_write({path!r})")


def _limit(kind: str, what: str, rule: str, field: str) -> Denial:
    return Denial(kind, what, f"limits.{rule}", f"raise it with Limits({field}=...)")
