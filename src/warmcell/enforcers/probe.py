"""Measures what this host can enforce, by trying it. Once per process."""

from __future__ import annotations

import os
import sys
from functools import cache

from warmcell.cage.failure import CageError
from warmcell.cage.linux import kernel_files
from warmcell.cage.linux.syscall_numbers import MACHINE, NUMBERS
from warmcell.enforcers import kernel_calls, namespaces_report
from warmcell.enforcers.layout import SHARED_ETC, system_layout
from warmcell.policy.compile import DEVICES
from warmcell.policy.resolve import HostCapabilities, HostLayout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.enforcers.refusals import Reason


@cache
def measure() -> HostCapabilities:
    """What the kernel offers. The runner adds what control groups offer."""
    if sys.platform != "linux":
        reasons = tuple((name, "this is not Linux", "") for name in ("user_namespaces", "landlock_abi", "seccomp"))
        return HostCapabilities(reasons=reasons)
    if not NUMBERS:
        needs = ("user_namespaces", "landlock_abi", "seccomp", *kernel_calls.SINCE)
        why = f"Warmcell does not know the system calls of {MACHINE}", "use a 64-bit Python on x86_64 or aarch64"
        return HostCapabilities(missing_calls=needs[3:], reasons=tuple((name, *why) for name in needs))
    found: list[tuple[str, str, str]] = []
    has_namespaces, landlock = namespaces_report.read_report()
    no_namespaces = _why_no_namespaces(has_namespaces)
    if no_namespaces is not None:
        found.append(("user_namespaces", *no_namespaces))
    is_known = landlock > 0
    landlock = landlock or _landlock()
    if not landlock:
        found.append(("landlock_abi", *_NO_LANDLOCK))
    seccomp = None if is_known else kernel_calls.missing_seccomp()
    if seccomp is not None:
        found.append(("seccomp", seccomp.reason, seccomp.remedy))
    missing = () if is_known else kernel_calls.missing_calls()
    found += [(call.name, call.reason, call.remedy) for call in missing]
    return HostCapabilities(
        user_namespaces=no_namespaces is None,
        landlock_abi=landlock,
        seccomp=seccomp is None,
        missing_calls=tuple(call.name for call in missing),
        process_limit_per_namespace=kernel_calls.kernel_version() >= (5, 14),
        reasons=tuple(found),
    )


def _landlock() -> int:
    from warmcell.cage.linux import kernel_support

    return kernel_support.landlock_version()


def _why_no_namespaces(were_made: bool) -> Reason | None:
    """Imports the explanations only if namespaces are missing."""
    refusal = _try_namespaces(were_made) if _is_proc_usable() else CageError("mount own proc", 0, "/proc")
    if refusal is None and not _would_guests_be_root():
        return None
    from warmcell.enforcers.refusals import guests_would_be_root, why_no_namespaces

    return why_no_namespaces(refusal) if refusal is not None else guests_would_be_root()


def _would_guests_be_root() -> bool:
    """Whether we have the id of the host's root, which owns kernel files, without its capabilities."""
    return os.stat("/proc/sys").st_uid == os.geteuid() and not kernel_files.is_root_of_host()


def _try_namespaces(were_made: bool) -> CageError | None:
    if were_made:
        return None
    from warmcell.enforcers import namespaces_probe

    return namespaces_probe.refusal()


def _is_proc_usable() -> bool:
    """Whether /proc is complete and of our pid namespace, as a cage needs it."""
    return os.path.exists("/proc/sys/kernel") and os.readlink("/proc/self") == str(os.getpid())


_NO_LANDLOCK = (
    "the kernel has no Landlock, or it is not switched on",
    "use Linux 5.13 or newer, with `landlock` in the `lsm=` boot parameter",
)


@cache
def layout() -> HostLayout:
    """The host's system directories, the links between them, and what programs need of /etc."""
    system = system_layout()
    directories = tuple(mount.target for mount in system.mounts if not mount.target.startswith("/etc/"))
    etc = tuple((mount.source, mount.target) for mount in system.mounts if mount.target in SHARED_ETC)
    missing = tuple(name for name in DEVICES if not os.path.exists(f"/dev/{name}"))
    return HostLayout(directories, system.links, etc, missing)
