"""Finds out why this host has no namespaces: which setting, filter or environment prevents them."""

from __future__ import annotations

import errno
import os

from warmcell.cage.failure import CageError
from warmcell.cage.linux import kernel_files, kernel_support, namespaces
from warmcell.cage.linux.syscalls import call
from warmcell.cage.records import NamedTuple
from warmcell.enforcers.host import has_foreign_proc
from warmcell.lifetime.descriptors import full_pids_group

#: For the remedies.
ELSEWHERE = "WasmBackend works without it"


class Reason(NamedTuple):
    """The obstacle and the remedy."""

    what: str
    remedy: str


def why_no_namespaces(refusal: CageError) -> Reason:
    """The first reason that applies."""
    return (
        _unusable_proc()
        or _place()
        or (_resources(refusal) if refusal.step == "create namespaces" else None)
        or (_filter() if refusal.step == "create namespaces" else _mount_filter())
        or _settings(refusal)
        or _security_module(refusal)
        or _privileges(refusal)
        or _mounts(refusal)
        or _guess_chroot(refusal)
        or _unknown(refusal)
    )


def _unusable_proc() -> Reason | None:
    if not os.path.exists("/proc/self/mountinfo"):
        return Reason("/proc is not mounted here", "mount it with `mount -t proc proc /proc`")
    if has_foreign_proc():
        return Reason(
            "/proc is that of another pid namespace than the one that this process is in",
            "mount its own there: `mount -t proc proc /proc` (or `unshare --mount-proc`)",
        )
    if not os.path.exists("/proc/sys/kernel"):
        return Reason(
            "/proc is mounted with subset=pid here, which hides /proc/sys",
            "mount it whole: `mount -t proc proc /proc`, without subset=pid (systemd: ProcSubset=all)",
        )
    if os.statvfs("/proc").f_flag & os.ST_RDONLY:
        return Reason(
            "/proc is mounted read-only here, and the users of a namespace are set by writing to it",
            f"mount it writable: `mount -o remount,rw /proc`; {ELSEWHERE}",
        )
    return None


def guests_would_be_root() -> Reason:
    """The reason on a host where we have root's id without its capabilities."""
    if kernel_files.read("/proc/self/uid_map").split() == ["0", "0", _ALL_IDS]:
        return Reason(
            "this is root without the capabilities of root, and guests would be root to the files of the host",
            f"run it as an ordinary user, or add the capabilities CAP_SYS_ADMIN, CAP_SETUID, ...; {ELSEWHERE}",
        )
    return Reason(
        "this is the host's root in a user namespace, and guests would be root to the files of the host",
        f"run it as root outside of that namespace, or as an ordinary user; {ELSEWHERE}",
    )


_ALL_IDS = str((1 << 32) - 1)


def _place() -> Reason | None:
    if is_own_cage():
        return Reason(
            "this is already inside a cage of Warmcell, where no second one can be built",
            f"run it outside; inside, {ELSEWHERE}",
        )
    if is_chroot():
        return Reason("the kernel refuses user namespaces in a chroot", _INSTEAD_OF_CHROOT)
    return None


_INSTEAD_OF_CHROOT = (
    "enter this root with pivot_root in a mount namespace of its own, as container tools do, instead of chroot; "
    + ELSEWHERE
)


def _guess_chroot(refusal: CageError) -> Reason | None:
    """A chroot whose root is a mount point cannot be recognised. Called when the other reasons are ruled out."""
    if refusal.step != "create namespaces" or refusal.errno != errno.EPERM:
        return None
    return Reason(
        "the kernel refuses user namespaces, as it does in a chroot, and nothing else was found that would",
        _INSTEAD_OF_CHROOT,
    )


def is_own_cage() -> bool:
    """Recognises a cage by its host name, user and ban on namespaces."""
    is_guest = os.uname().nodename == "sandbox" and os.getuid() == 1000
    return is_guest and _read("/proc/sys/user/max_user_namespaces") == "0"


def is_chroot() -> bool:
    """Whether our root differs from that of our mount namespace. Recognises only the two usual cases."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        if all(line.split()[4] != "/" for line in file):
            return True  # the root is a plain directory; the mount that contains it is not visible
    try:
        same_namespace = os.readlink("/proc/1/ns/mnt") == os.readlink("/proc/self/ns/mnt")
        return same_namespace and not os.path.samefile("/proc/1/root", "/")
    except OSError:
        return False  # only root may read the root of other users' processes


def _resources(refusal: CageError) -> Reason | None:
    if refusal.errno == errno.EAGAIN:
        group = full_pids_group()
        if group is not None:
            what = f"the cgroup {group[0]} has as many processes as its pids.max of {group[1]} allows"
            return Reason(what, "raise it (systemd: TasksMax=, containers: --pids-limit), or run fewer at once")
        return Reason("too many processes for this user", "raise the limit (`ulimit -u`), or run fewer at once")
    if refusal.errno == errno.ENOMEM:
        return Reason("out of memory", "free some, or raise the limit (`ulimit -v`)")
    return None


def _filter() -> Reason | None:
    """Checks for a seccomp filter: the kernel rejects an invalid flag with EINVAL before it checks anything else."""
    names = [
        name
        for name, flags in _REFUSED_BY_THE_KERNEL.items()
        if not _reaches_kernel(name, namespaces.CLONE_NEWUSER | flags)
    ]
    return _filter_reason(f"{names[0]} with CLONE_NEWUSER") if names else None


def _mount_filter() -> Reason | None:
    """The same for mounts: the kernel checks the pointers of mount() and the flags of umount2() before privileges."""
    names = [name for name in ("mount", "umount2") if not kernel_support.has_call(name)]
    return _filter_reason(names[0]) if names else None


def _filter_reason(what: str) -> Reason:
    return Reason(
        f"a seccomp filter around this process refuses {what}",
        f"allow unshare, clone, mount, umount2 and pivot_root in the seccomp profile of whatever started it (for "
        f"containers: `--security-opt seccomp=PROFILE`); {ELSEWHERE}",
    )


#: Flags that every kernel refuses: a signal number, a thread that does not share signal handlers.
_REFUSED_BY_THE_KERNEL = {"unshare": 1, "clone": 0x10000}


def _reaches_kernel(name: str, flags: int) -> bool:
    """Whether the kernel refused the flags, and not a filter."""
    try:
        call(name, flags, 0, 0, 0, 0)
    except OSError as error:
        return error.errno == errno.EINVAL
    os._exit(1)  # the call succeeded, so this may be a new process: end it


def _settings(refusal: CageError) -> Reason | None:
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0" and os.geteuid() != 0:
        return Reason(
            "user namespaces are switched off (kernel.unprivileged_userns_clone)",
            f"run `sudo sysctl -w kernel.unprivileged_userns_clone=1`; {ELSEWHERE}",
        )
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return Reason(
            "user namespaces are switched off (user.max_user_namespaces)",
            f"run `sudo sysctl -w user.max_user_namespaces=15000`; {ELSEWHERE}",
        )
    if refusal.step == "create namespaces" and refusal.errno in (errno.ENOSPC, errno.EUSERS):
        return Reason(
            "a user namespace around this process allows no more of them (user.max_user_namespaces there)",
            f"start it without that limit (bubblewrap: without --disable-userns); {ELSEWHERE}",
        )
    if refusal.step == "create namespaces" and refusal.errno in (errno.EINVAL, errno.ENOSYS):
        return Reason("the kernel was built without user namespaces", f"use one with CONFIG_USER_NS; {ELSEWHERE}")
    return None


def _security_module(refusal: CageError) -> Reason | None:
    """AppArmor allows a namespace without privileges; a profile that forbids mounting causes EACCES."""
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        return Reason(
            "AppArmor restricts unprivileged user namespaces (kernel.apparmor_restrict_unprivileged_userns)",
            "run `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or give this Python an AppArmor "
            f"profile with `userns,`; {ELSEWHERE}",
        )
    label = _read("/proc/self/attr/current").strip("\0\n")
    if refusal.errno != errno.EACCES or not label or label == "unconfined":
        return None
    has_selinux = os.path.exists("/sys/fs/selinux/enforce")
    module, option = ("SELinux", "label=disable") if has_selinux else ("AppArmor", "apparmor=unconfined")
    return Reason(
        f"{module} forbids it to this process ({label}): could not {refusal.step}",
        f"allow userns and mount in that profile (for containers: `--security-opt {option}`); {ELSEWHERE}",
    )


def _privileges(refusal: CageError) -> Reason | None:
    if os.geteuid() != 0 or refusal.step != "map own user":
        return None
    return Reason(
        "this is root without the capabilities of root: mapping uid 0 into a namespace needs CAP_SETFCAP",
        f"run it as an ordinary user, or keep CAP_SYS_ADMIN and CAP_SETFCAP; {ELSEWHERE}",
    )


def _mounts(refusal: CageError) -> Reason | None:
    if refusal.step != "mount own proc":
        return None
    covered = _mounts_below_proc()
    if not covered:
        return None
    return Reason(
        f"parts of /proc are covered or read-only here ({', '.join(covered[:3])}), so the kernel refuses a new one",
        "start this process with all of /proc (docker: `--security-opt systempaths=unconfined`, podman: "
        f"`--security-opt unmask=ALL`, Kubernetes: `procMount: Unmasked` with `hostUsers: false`); {ELSEWHERE}, and "
        "allow_weaker='landlock' (the command: --enforcer landlock) uses Landlock and seccomp alone",
    )


def _mounts_below_proc() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        targets = [line.split()[4] for line in file]
    return sorted({target for target in targets if target.startswith("/proc/")})


def _unknown(refusal: CageError) -> Reason:
    reason = os.strerror(refusal.errno) if refusal.errno else "no answer"
    return Reason(
        f"could not {refusal.step}: {reason}; it is neither a seccomp filter, a sysctl nor a chroot", ELSEWHERE
    )


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
