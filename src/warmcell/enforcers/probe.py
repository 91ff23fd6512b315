"""Measures what this host can enforce, by trying it. Each question is asked once per process."""

from __future__ import annotations

import os
import sys
from functools import cache

from warmcell.cage.linux import landlock_version
from warmcell.enforcers import namespaces_probe
from warmcell.enforcers.layout import SHARED_ETC, system_layout
from warmcell.policy.host import HostCapabilities, HostLayout


@cache
def measure() -> HostCapabilities:
    """User namespaces and seccomp are proved by the first cage; what control groups add is the runner's to know."""
    reasons: list[tuple[str, str]] = []
    if sys.platform != "linux":
        reasons = [(name, "this is not Linux") for name in ("user_namespaces", "landlock_abi", "seccomp")]
        return HostCapabilities(reasons=tuple(reasons))
    has_namespaces = namespaces_probe.works()
    if not has_namespaces:
        reasons.append(("user_namespaces", remedy()))
    abi = landlock_version.abi()
    if not abi:
        reasons.append(("landlock_abi", "the kernel has no Landlock (5.13+) or it is not in the `lsm=` boot parameter"))
    machine = os.uname().machine
    has_seccomp = machine in ("x86_64", "aarch64") and _has_seccomp()
    if not has_seccomp:
        reasons.append(("seccomp", f"no filter for {machine}, or the kernel has no seccomp filters"))
    return HostCapabilities(
        user_namespaces=has_namespaces,
        landlock_abi=abi,
        seccomp=has_seccomp,
        process_limit_per_namespace=_kernel() >= (5, 14),
        reasons=tuple(reasons),
    )


def _kernel() -> tuple[int, int]:
    numbers = os.uname().release.split(".")
    return int(numbers[0]), int("".join(ch for ch in numbers[1] if ch.isdigit()) or 0)


def _has_seccomp() -> bool:
    try:
        with open("/proc/self/status") as file:
            return any(line.startswith("Seccomp_filters:") or line.startswith("Seccomp:") for line in file)
    except OSError:
        return False


def remedy() -> str:
    """The setting that stands in the way of user namespaces, by name."""

    def reads(path: str, value: str) -> bool:
        try:
            with open(path) as file:
                return file.read().strip() == value
        except OSError:
            return False

    if not os.path.exists("/proc/self/mountinfo"):
        return "there is no /proc here: mount it with `mount -t proc proc /proc`"
    if is_chroot():
        return (
            "the kernel refuses user namespaces in a chroot: enter this root with pivot_root in a mount namespace of "
            "its own, as container tools do, instead of chroot"
        )
    if reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"):
        return (
            "AppArmor restricts unprivileged user namespaces: run `sudo sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0`, or give this Python an AppArmor profile with `userns,`"
        )
    if reads("/proc/sys/kernel/unprivileged_userns_clone", "0"):
        return "they are switched off: run `sudo sysctl -w kernel.unprivileged_userns_clone=1`"
    if reads("/proc/sys/user/max_user_namespaces", "0"):
        return "they are switched off: run `sudo sysctl -w user.max_user_namespaces=15000`"
    return (
        "the kernel or the container around us refuses them: in Docker, run with "
        "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined`"
    )


def is_chroot() -> bool:
    """Whether our root directory is not that of our mount namespace. Known for certain in the two usual cases only."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        if all(line.split()[4] != "/" for line in file):
            return True  # the root is a plain directory, and the mount that it lies on is out of sight
    try:
        same_namespace = os.readlink("/proc/1/ns/mnt") == os.readlink("/proc/self/ns/mnt")
        return same_namespace and not os.path.samefile("/proc/1/root", "/")
    except OSError:
        return False  # only root may look at where somebody else's root is


@cache
def layout() -> HostLayout:
    """The host's system directories, the links between them, and the little of /etc that programs need."""
    system = system_layout()
    directories = tuple(mount.target for mount in system.mounts if not mount.target.startswith("/etc/"))
    etc = tuple((mount.source, mount.target) for mount in system.mounts if mount.target in SHARED_ETC)
    return HostLayout(directories, system.links, etc)
