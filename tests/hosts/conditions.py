"""Unusual hosts, each as a command prefix: the command after it runs on such a host.

All of it in namespaces, limits and filters of the command's own: nothing of this host is changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

_REFUSE = str(Path(__file__).with_name("refuse_calls.py"))
Prefix = tuple[str, ...]

ORDINARY: Prefix = ()
ROOT_OF_NAMESPACE: Prefix = ("unshare", "-Ur")
ROOT_WITHOUT_CAPABILITIES: Prefix = ("unshare", "-Ur", "setpriv", "--bounding-set=-all", "--inh-caps=-all")
NO_MORE_NAMESPACES: Prefix = tuple(
    "bwrap --bind / / --dev-bind /dev /dev --proc /proc --unshare-user --disable-userns".split()
)
READ_ONLY_ROOT: Prefix = tuple("bwrap --ro-bind / / --dev-bind /dev /dev --proc /proc".split())


def without_calls(*names: str) -> Prefix:
    return (sys.executable, _REFUSE, ",".join(names))


def as_root(script: str, *, then_ordinary: bool = True) -> Prefix:
    """Runs `script` as root of a new user and mount namespace, then the command as an ordinary user of another one."""
    go_on = 'exec unshare -U --map-user=1001 --map-group=1001 "$@"' if then_ordinary else 'exec "$@"'
    return ("unshare", "-Urmpf", "--mount-proc", "sh", "-ec", f"{script}\n{go_on}", "sh")


def with_limit(option: str) -> Prefix:
    return ("bash", "-ec", f'ulimit {option}; exec "$@"', "sh")


def ignoring(signal: str) -> Prefix:
    code = (
        f"import os, signal, sys; signal.signal(signal.{signal}, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    return (sys.executable, "-c", code)


#: A copy of the whole host, so that the tests are there too; its root is an ordinary mount.
CHROOT: Prefix = ("unshare", "-Urm", "sh", "-ec", 'mount --rbind / /mnt; exec /usr/sbin/chroot /mnt "$@"', "sh")
NO_PROC = as_root("mount -t tmpfs none /proc", then_ordinary=False)
PROC_SUBSET = as_root("mount -t proc -o subset=pid proc /proc")
STALE_PROC: Prefix = ("unshare", "-Urpf")
PROC_COVERED = as_root("mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys")
SWITCHED_OFF = ("unshare", "-Ur", "sh", "-ec", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh")
PROC_READ_ONLY = as_root("mount -o remount,bind,ro /proc", then_ordinary=False)
#: As in the smallest container images.
NO_DEV_FULL: Prefix = (
    *"bwrap --bind / / --proc /proc --tmpfs /dev --tmpfs /dev/shm --symlink /proc/self/fd /dev/fd".split(),
    *(word for name in ("null", "zero", "random", "urandom", "tty") for word in ("--dev-bind", *[f"/dev/{name}"] * 2)),
)
NO_ROOM = as_root("mount -t tmpfs -o size=4k,nr_inodes=2 none /tmp; mount --bind /tmp /var/tmp; echo full > /tmp/file")
