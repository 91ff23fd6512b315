"""The system calls that the cage needs: which are missing, why, and what to do."""

from __future__ import annotations

import errno
import os

from warmcell.core.records import dataclass

#: The first Linux version that has each call.
SINCE = {
    "unshare": (2, 6),
    "setns": (3, 0),
    "pidfd_send_signal": (5, 1),
    "open_tree": (5, 2),
    "pidfd_open": (5, 3),
    "openat2": (5, 6),
    "close_range": (5, 9),
    "mount_setattr": (5, 12),
}
#: WebAssembly passes compiled code to its workers in sealed files.
WASM_CALLS = {"memfd_create": (3, 17)}


@dataclass(frozen=True, slots=True)
class Missing:
    """A missing call, the reason and the remedy."""

    name: str
    reason: str
    remedy: str


def missing_call(name: str) -> Missing | None:
    from warmcell.cage.linux import kernel_support  # imports `_ctypes`, which most commands do not need

    return None if kernel_support.has_call(name) else _missing(name, {**SINCE, **WASM_CALLS}[name])


def missing_calls() -> tuple[Missing, ...]:
    found = (missing_call(name) for name in SINCE)
    return tuple(missing for missing in found if missing is not None)


def missing_seccomp() -> Missing | None:
    """Why seccomp filters with notifications, which every cage uses, are not available; None if they are."""
    from warmcell.cage.linux import kernel_support

    refusal = kernel_support.seccomp_errno()
    if not refusal:
        return None
    if refusal == errno.EOPNOTSUPP:
        return Missing("seccomp", "the kernel has no seccomp notifications", "use Linux 5.0 or newer")
    missing = _missing("seccomp", (5, 0))
    return Missing("seccomp", missing.reason, f"{missing.remedy}, or use a kernel with CONFIG_SECCOMP_FILTER")


def kernel_version() -> tuple[int, int]:
    numbers = os.uname().release.split(".")
    return int(numbers[0]), int("".join(ch for ch in numbers[1] if ch.isdigit()) or 0)


def _missing(name: str, since: tuple[int, int]) -> Missing:
    """The kernel is too old or, if its version has the call, something refuses it."""
    first = f"{since[0]}.{since[1]}"
    if kernel_version() < since:
        release = ".".join(map(str, kernel_version()))
        return Missing(
            name, f"the kernel (Linux {release}) has no {name}, which came with {first}", f"use Linux {first} or newer"
        )
    return Missing(
        name,
        f"a seccomp filter around this process refuses {name}, or the kernel was built without it",
        f"allow {name} in the seccomp profile of whatever started this process (for containers: `--security-opt "
        "seccomp=PROFILE`)",
    )
