"""Which of the host's settings and security modules refuses namespaces, by the files that it leaves to be read."""

from __future__ import annotations

import errno
import os

import pytest

from warmcell.cage.failure import CageError
from warmcell.enforcers import refusals

pytestmark = pytest.mark.needs("linux")
CLONE, UNSHARE = "/proc/sys/kernel/unprivileged_userns_clone", "/proc/sys/user/max_user_namespaces"
RESTRICT, LABEL = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "/proc/self/attr/current"
SELINUX = "/sys/fs/selinux/enforce"
USER, ROOT = 1000, 0
CREATE, MAP, MOUNT = "create namespaces", "map own user", "mount own proc"


def told(monkeypatch: pytest.MonkeyPatch, files: dict[str, str], uid: int, step: str, number: int) -> tuple[str, str]:
    """What is said on a host with these files and no others, to a user, about a step that failed."""
    exists = os.path.exists
    known = {CLONE, UNSHARE, RESTRICT, LABEL, SELINUX}
    monkeypatch.setattr(refusals, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(os.path, "exists", lambda path: path in files if path in known else exists(path))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(refusals, "_filter", lambda: None)
    reason = refusals.why_no_namespaces(CageError(step, number, ""))
    assert refusals.ELSEWHERE in reason.remedy
    return reason.what, reason.remedy


@pytest.mark.parametrize(
    ("files", "uid", "step", "number", "what", "remedy"),
    [
        ({CLONE: "0"}, USER, CREATE, errno.EPERM, "switched off (kernel.unprivileged_userns_clone)", "clone=1"),
        ({CLONE: "0", UNSHARE: "0"}, ROOT, CREATE, errno.ENOSPC, "(user.max_user_namespaces)", "sudo sysctl -w user."),
        ({UNSHARE: "99"}, USER, CREATE, errno.ENOSPC, "around this process allows no more of them", "--disable-userns"),
        ({UNSHARE: "99"}, USER, CREATE, errno.EINVAL, "built without user namespaces", "CONFIG_USER_NS"),
        ({RESTRICT: "1"}, USER, MAP, errno.EACCES, "AppArmor restricts unprivileged", "restrict_unprivileged_userns=0"),
        ({RESTRICT: "1"}, USER, MOUNT, errno.EPERM, "AppArmor restricts unprivileged", "profile with `userns,`"),
        (
            {RESTRICT: "1", LABEL: "docker-default (enforce)"},
            ROOT,
            MOUNT,
            errno.EACCES,
            "AppArmor forbids it to this process (docker-default (enforce)): could not mount own proc",
            "--security-opt apparmor=unconfined",
        ),
        (
            {LABEL: "system_u:system_r:container_t:s0:c1,c2\0", SELINUX: "1"},
            USER,
            MOUNT,
            errno.EACCES,
            "SELinux forbids it to this process (system_u:system_r:container_t:s0:c1,c2): could not mount own proc",
            "--security-opt label=disable",
        ),
        ({RESTRICT: "0", LABEL: "unconfined\n"}, USER, CREATE, errno.EACCES, "neither a seccomp filter", ""),
        ({LABEL: "docker-default (enforce)"}, USER, CREATE, errno.EPERM, "as it does in a chroot", "pivot_root"),
        ({}, ROOT, CREATE, errno.EPERM, "as it does in a chroot", "pivot_root"),
        ({}, ROOT, MAP, errno.EPERM, "root without the capabilities of root", "CAP_SETFCAP"),
        ({}, USER, CREATE, errno.EAGAIN, "too many processes for this user", ""),
    ],
)
def test_the_one_that_it_is_is_named(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], uid: int, step: str, number: int, what: str, remedy: str
) -> None:
    if number == errno.EAGAIN:
        monkeypatch.setattr(refusals, "ELSEWHERE", "")  # too many processes is not a matter of the cage
    said, advised = told(monkeypatch, files, uid, step, number)
    assert what in said and remedy in advised
