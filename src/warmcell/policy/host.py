"""What a host was measured to offer, as data. `enforcers` measures, this package decides. Pure module."""

from __future__ import annotations

from warmcell.core.records import dataclass


@dataclass(frozen=True, slots=True)
class HostCapabilities:
    """Each is set only if it was tried and worked; `reasons` says why the others are missing."""

    user_namespaces: bool = False
    landlock_abi: int = 0
    seccomp: bool = False
    cgroup: str | None = None
    #: Whether that cgroup can limit the share of the processors.
    cpu_share: bool = False
    #: RLIMIT_NPROC counts per user namespace, not per user of the whole host (Linux 5.14).
    process_limit_per_namespace: bool = False
    #: System calls that the cage needs and that are not available here.
    missing_calls: tuple[str, ...] = ()
    #: (name, reason, remedy)
    reasons: tuple[tuple[str, str, str], ...] = ()

    def reason(self, name: str) -> str:
        return next((what for key, what, _ in self.reasons if key == name), "not available on this host")

    def remedy(self, name: str) -> str:
        return next((remedy for key, _, remedy in self.reasons if key == name), "")


@dataclass(frozen=True, slots=True)
class HostLayout:
    """The system directories of the host and the links between them, which the guest sees the same way."""

    directories: tuple[str, ...] = ("/usr",)
    symlinks: tuple[tuple[str, str], ...] = ()
    #: What TLS, locale and the dynamic loader need of /etc: (host path, guest path).
    etc: tuple[tuple[str, str], ...] = ()
    #: Devices that guests usually see and that this host lacks.
    missing_devices: tuple[str, ...] = ()
