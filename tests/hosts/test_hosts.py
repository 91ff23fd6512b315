"""The table of hosts: on each it works, or says what is wrong and what to do, by every door alike.

`docs/troubleshooting.md` lists the same by the message that a user sees; a test below holds the two together.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import is_root, require
from tests.hosts import conditions
from tests.hosts.conditions import Prefix, ignoring, with_limit, without_calls
from tests.hosts.running import on

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


@dataclass(frozen=True)
class Refused:
    """What the message says, and the remedy, as patterns."""

    message: str
    remedy: str


@dataclass(frozen=True)
class Host:
    """`process`: the enforcer that is taken, or the refusal; `wasm`: the class of isolation, or the refusal."""

    name: str
    prefix: Prefix
    process: str | Refused
    wasm: str | Refused
    is_only_for_users: bool = False


def call_refused(name: str) -> Refused:
    return Refused(f"a seccomp filter around this process refuses {name}", f"allow {name} in the seccomp profile")


def has_many(what: str) -> Refused:
    return Refused(what, "raise")


#: In a user namespace of root's the cage is refused: guests would be root to the files of the host.
IN_NAMESPACE, WASM_IN_NAMESPACE = ("bubblewrap", "wasm") if is_root() else ("native", "wasm+process")
NO_PROC = Refused("/proc is not mounted here|need /proc", "mount -t proc proc /proc")
HOSTS = (
    Host("ordinary", conditions.ORDINARY, "native", "wasm+process"),
    Host("uid 0 in a user namespace", conditions.ROOT_OF_NAMESPACE, IN_NAMESPACE, WASM_IN_NAMESPACE),
    Host(
        "root without capabilities",
        conditions.ROOT_WITHOUT_CAPABILITIES,
        Refused("this is root without the capabilities of root", "run it as an ordinary user"),
        "wasm",
    ),
    Host(
        "no more user namespaces (--disable-userns)",
        conditions.NO_MORE_NAMESPACES,
        Refused("a user namespace around this process allows no more of them", "without --disable-userns"),
        "wasm",
    ),
    Host(
        "user namespaces switched off by sysctl",
        conditions.SWITCHED_OFF,
        Refused("switched off .user.max_user_namespaces", "sysctl -w user.max_user_namespaces"),
        "wasm",
    ),
    Host(
        "user namespaces refused by a seccomp filter",
        without_calls("unshare&0x10000000=1", "clone&0x10000000=1", "clone3"),
        Refused("a seccomp filter around this process refuses unshare with CLONE_NEWUSER", "seccomp profile"),
        "wasm",
    ),
    Host("no unshare", without_calls("unshare=1"), call_refused("unshare"), "wasm"),
    Host("no Landlock", without_calls("landlock_create_ruleset"), "bubblewrap", "wasm"),
    Host("no seccomp", without_calls("seccomp"), "bubblewrap", "wasm"),
    Host("no open_tree", without_calls("open_tree"), "bubblewrap", "wasm"),
    Host("no mount_setattr", without_calls("mount_setattr"), "bubblewrap", "wasm"),
    Host("no openat2", without_calls("openat2"), "bubblewrap", "wasm"),
    Host("no pidfd_open", without_calls("pidfd_open"), call_refused("pidfd_open"), "wasm"),
    Host("no close_range", without_calls("close_range"), call_refused("close_range"), "wasm"),
    Host("no memfd_create", without_calls("memfd_create"), "native", call_refused("memfd_create")),
    Host("no /proc", conditions.NO_PROC, NO_PROC, NO_PROC),
    Host(
        "a /proc of another pid namespace",
        conditions.STALE_PROC,
        Refused("another pid namespace", "mount -t proc proc /proc"),
        "wasm",
    ),
    Host("/proc with subset=pid", conditions.PROC_SUBSET, Refused("subset=pid", "ProcSubset=all"), "wasm"),
    Host(
        "/proc/sys read-only",
        conditions.PROC_COVERED,
        Refused("parts of /proc are covered or read-only here", "systempaths=unconfined"),
        "wasm",
    ),
    Host(
        "/proc read-only", conditions.PROC_READ_ONLY, Refused("/proc is mounted read-only", "remount,rw /proc"), "wasm"
    ),
    Host("no mount", without_calls("mount=1"), Refused("seccomp filter .* refuses mount", "allow .*mount"), "wasm"),
    Host("no /dev/full", conditions.NO_DEV_FULL, "native", "wasm+process", is_only_for_users=True),
    Host("read-only root", conditions.READ_ONLY_ROOT, "native", "wasm+process", is_only_for_users=True),
    Host(
        "a chroot",
        conditions.CHROOT,
        Refused("the kernel refuses user namespaces, as it does in a chroot", "pivot_root"),
        "wasm",
        is_only_for_users=True,
    ),
    Host("TMPDIR=/var/tmp", ("env", "TMPDIR=/var/tmp"), "native", "wasm+process"),
    Host("SIGCHLD ignored", ignoring("SIGCHLD"), "native", "wasm+process"),
    Host(
        "ulimit -f 0",
        with_limit("-f 0"),
        has_many("limit on file size is too small"),
        has_many("limit on file size is too small"),
    ),
    Host("ulimit -n 12", with_limit("-n 12"), has_many("RLIMIT_NOFILE is 12"), has_many("RLIMIT_NOFILE is 12")),
    Host("ulimit -n 64", with_limit("-n 64"), "native", "wasm+process"),
    Host(
        "ulimit -u 1",
        with_limit("-u 1"),
        has_many("too many processes for this user"),
        has_many("too many processes and threads for this user"),
        is_only_for_users=True,
    ),
    Host("ulimit -v", with_limit("-v 1000000"), "native", Refused("address space", "ulimit -v unlimited")),
    Host("a full /tmp", conditions.NO_ROOM, IN_NAMESPACE, WASM_IN_NAMESPACE),
)


def check(said: list[Any], expected: str | Refused) -> None:
    if isinstance(expected, str):
        assert said == ["42\n", "", expected, 0]
        return
    kind, _, fault, message, hint = said
    assert (kind, fault) == ("error", "host"), said
    assert re.search(expected.message, message) and re.search(expected.remedy, hint), said


@pytest.mark.needs("linux", "user namespaces", "bwrap")
@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_it_works_or_says_what_is_wrong(host: Host) -> None:
    if host.is_only_for_users and is_root():
        pytest.skip("root is above this, or covers /proc when it asks for it")
    if host.prefix == conditions.NO_ROOM:
        require(not sys.executable.startswith("/tmp/"), "this checkout lies in /tmp, which the test fills")
    answers = on(host.prefix, "process", "wasm", "command", "doctor")
    print(json.dumps(answers, indent=1))
    check(answers["process"], host.process)
    check(answers["wasm"], host.wasm)
    assert_command_and_doctor_agree(answers)


def assert_command_and_doctor_agree(answers: dict[str, list[Any]]) -> None:
    works = answers["process"][0] == "42\n"
    is_available, (status, proof, remedy) = answers["doctor"]
    assert is_available == works
    if works:
        assert answers["command"][0] == "42\n"
        return
    assert answers["command"][2:] == answers["process"][2:]
    assert status == "missing" and proof.removeprefix("native: ") in answers["process"][3]
    assert remedy and remedy in answers["process"][4]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_what_is_said_is_on_the_page(host: Host) -> None:
    page = PAGE.read_text()
    for refused in (host.process, host.wasm):
        if isinstance(refused, Refused):
            message = re.sub(r"(refuses) \w+$", r"\1 \\w+", refused.message)
            assert re.search(message, page), f"{refused.message!r} is not in {PAGE.name}"


@pytest.mark.parametrize(
    "name", ["lifetime/host_program.py", "enforcers/refusals.py", "enforcers/probe.py", "lifetime/threads.py"]
)
def test_every_sentence_that_we_say_begins_a_row(name: str) -> None:
    """The constant beginnings of messages, in the source and on the page."""
    source = (PAGE.parents[1] / "src" / "warmcell" / name).read_text()
    page = PAGE.read_text()
    said = re.findall(
        r'"((?:this is|there is no|no asyncio|the kernel (?:refuses|has no)|user namespaces are|parts of)[^"{(;,:]*)',
        source,
    )
    assert said
    assert [words for words in said if words.strip() not in page] == []
