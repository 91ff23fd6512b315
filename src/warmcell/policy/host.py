"""What a host was measured to offer, as data. The enforcers room measures; this room decides from it. Pure module."""

from __future__ import annotations

from warmcell.core.records import dataclass


@dataclass(frozen=True, slots=True)
class HostCapabilities:
    """Each is True or a number only if it was tried and worked; `reasons` says why what is missing is missing."""

    user_namespaces: bool = False
    landlock_abi: int = 0
    seccomp: bool = False
    cgroup: str | None = None
    #: That cgroup can hold a share of the processors.
    cpu_share: bool = False
    #: RLIMIT_NPROC counts per user namespace, not per user of the whole host (Linux 5.14).
    process_limit_per_namespace: bool = False
    #: System calls that the cage needs and that cannot be made here.
    missing_calls: tuple[str, ...] = ()
    #: (which of these, why, what to do about it)
    reasons: tuple[tuple[str, str, str], ...] = ()

    def reason(self, name: str) -> str:
        return next((what for key, what, _ in self.reasons if key == name), "not available on this host")

    def remedy(self, name: str) -> str:
        return next((remedy for key, _, remedy in self.reasons if key == name), "")


@dataclass(frozen=True, slots=True)
class HostLayout:
    """Which system directories the host has and how they are linked, so that the guest's world looks the same."""

    directories: tuple[str, ...] = ("/usr",)
    symlinks: tuple[tuple[str, str], ...] = ()
    #: What TLS, locale and the dynamic loader need of /etc: (host path, guest path).
    etc: tuple[tuple[str, str], ...] = ()
