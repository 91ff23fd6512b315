"""What a run was refused, told from facts, with the rule and the remedy. Pure but for the collector."""

from __future__ import annotations

from warmcell.core.types import Denial, EffectiveLimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.runner.outcome import Exit, KernelUsage

MOST_DENIALS = 64


class DenialCollector:
    """What a run was refused: each thing once, and not more of them than anybody reads. For any number of threads."""

    def __init__(self) -> None:
        self._denials: dict[Denial, None] = {}

    def add(self, denial: Denial) -> None:
        if len(self._denials) < MOST_DENIALS:
            self._denials.setdefault(denial)

    def all(self) -> list[Denial]:
        return list(self._denials)


def explain(end: Exit, kernel: KernelUsage, limits: EffectiveLimits, allowed_targets: tuple[str, ...]) -> list[Denial]:
    """Everything the cage noted, in the words of the policy."""
    is_told = end.denials or end.verdict or end.cut_short or end.limits_met
    if not (is_told or kernel.memory_kills or kernel.process_refusals):
        return []  # as nearly always
    found = refused(end.denials, allowed_targets)
    if end.verdict == "memory" or kernel.memory_kills:
        found.append(_limit("memory", f"more than {limits.memory_mb} MB", "memoryMb", "memory_mb"))
    if end.is_over_cpu:
        found.append(_limit("cpu", f"more than {limits.cpu_seconds:g} s of cpu time", "cpuSeconds", "cpu_seconds"))
    if end.verdict == "disk" or "disk" in end.limits_met:
        found.append(_limit("disk", f"more than {limits.disk_mb} MB", "diskMb", "disk_mb"))
    if end.verdict == "descriptors":
        what = "more than a guest's share of pipes, watched descriptors or descriptors in flight"
        found.append(Denial("descriptors", what, "shared quotas", "no policy allows more: other guests need theirs"))
    if kernel.process_refusals or "processes" in end.limits_met:
        found.append(_limit("processes", f"more than {limits.processes} processes", "processes", "processes"))
    return found


def refused(noted: list[list[str]], allowed_targets: tuple[str, ...]) -> list[Denial]:
    """What the cage noted as kinds and words; files that the policy shows were refused by nobody but themselves."""
    found = [_refused(kind, what) for kind, what in noted if kind != "path"]
    return found + [
        _refused("path", what)
        for kind, what in noted
        if kind == "path" and what.startswith("/") and not _is_covered(what, allowed_targets)
    ]


def _is_covered(path: str, targets: tuple[str, ...]) -> bool:
    return any(path == target or path.startswith(target.rstrip("/") + "/") for target in targets)


def _refused(kind: str, what: str) -> Denial:
    if kind == "network":
        hint = "allow it with allow_domain(name, ports); allowed names are reached through the proxy in HTTPS_PROXY"
        return Denial(kind, what, "networkRules", hint)
    if kind == "process":
        hint = "a policy allows new processes only if it says so: allow_process_spawn()"
        return Denial(kind, what, "allowProcessSpawn", hint)
    if kind == "path":
        return Denial(kind, what, "allowedPaths", f"allow it with allow_read({what!r}) or allow_read_write({what!r})")
    return Denial(kind, what, "system calls", "no policy allows this call; the program must do without it")


def _limit(kind: str, what: str, rule: str, field: str) -> Denial:
    return Denial(kind, what, f"limits.{rule}", f"raise it with Limits({field}=...)")
