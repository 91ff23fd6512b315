"""The check of a finished cage: every deviation is named, and only a cage as planned has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import until

from warmcell.cage import verify
from warmcell.cage.plan import Bind, LaunchPlan
from warmcell.cage.verify import Expected, Facts

_OUTER = {"user": 1, "mnt": 2, "pid": 3, "net": 4, "ipc": 5, "uts": 6, "cgroup": 7}
_PLAN = LaunchPlan(
    binds=(Bind("/usr", "/usr"), Bind("/data", "/data", writable=True), Bind("/dev/null", "/dev/null", device=True)),
    scratch_dirs=(("/tmp", 0o1777),),
)
_DESCRIPTORS = [(8, 1), (8, 2), (8, 3), (8, 5)]
_EXPECTED = Expected(_PLAN, _DESCRIPTORS, _OUTER, host_id=70)
_STATUS = {
    **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0000000000000000"),
    "NoNewPrivs": "1",
    "Seccomp": "2",
    "Uid": "70\t70\t70\t70",
    "Gid": "70\t70\t70\t70",
}
_GOOD = Facts(
    status=_STATUS,
    descriptors=_DESCRIPTORS,
    mounts={"/": False, "/usr": False, "/data": True, "/dev/null": False, "/tmp": True, "/proc": True},
    covered=(),
    namespaces={name: number + 100 for name, number in _OUTER.items()},
    uid_map="1000 1879048192 1",
    gid_map="1000 1879048192 1",
    init_owner=65534,
)

pytestmark = pytest.mark.claim("WC-KR-3")


def _problems(facts: Facts, expected: Expected = _EXPECTED) -> str:
    return "; ".join(verify.problems(facts, expected))


def test_a_cage_as_planned_has_no_problem() -> None:
    assert verify.problems(_GOOD, _EXPECTED) == []


@pytest.mark.parametrize("name", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
@pytest.mark.parametrize("value", ["0000000000000001", "000001ffffffffff", "0000000000200000"])
def test_any_capability(name: str, value: str) -> None:
    assert name in _problems(_GOOD._replace(status={**_STATUS, name: value}))


@pytest.mark.parametrize("name", ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp"])
def test_a_fact_that_is_missing_counts_as_bad(name: str) -> None:
    status = {key: value for key, value in _STATUS.items() if key != name}
    assert _problems(_GOOD._replace(status=status))


@pytest.mark.parametrize(("name", "value"), [("NoNewPrivs", "0"), ("Seccomp", "0"), ("Seccomp", "1")])
def test_locks_that_are_not_there(name: str, value: str) -> None:
    assert _problems(_GOOD._replace(status={**_STATUS, name: value}))


def test_an_init_that_is_not_shielded() -> None:
    assert "init is dumpable" in _problems(_GOOD._replace(init_owner=70))


@pytest.mark.parametrize("descriptors", [[*_DESCRIPTORS, (8, 6)], _DESCRIPTORS[:3], [*_DESCRIPTORS[:3], (8, 255)], []])
def test_descriptors(descriptors: list[tuple[int, int]]) -> None:
    assert "descriptors instead" in _problems(_GOOD._replace(descriptors=descriptors))


@pytest.mark.parametrize("name", sorted(_OUTER))
def test_a_namespace_of_the_host(name: str) -> None:
    assert f"the {name} namespace" in _problems(_GOOD._replace(namespaces={**_GOOD.namespaces, name: _OUTER[name]}))


def test_the_hosts_network_only_when_planned() -> None:
    facts = _GOOD._replace(namespaces={**_GOOD.namespaces, "net": _OUTER["net"]})
    assert _problems(facts)
    assert not _problems(facts, _EXPECTED._replace(plan=_PLAN._replace(network="host")))


@pytest.mark.parametrize("name", ["Uid", "Gid"])
@pytest.mark.parametrize("ids", ["0\t0\t0\t0", "70\t0\t70\t70", "71\t71\t71\t71", ""])
def test_another_user(name: str, ids: str) -> None:
    assert f"{name} is" in _problems(_GOOD._replace(status={**_STATUS, name: ids}))


@pytest.mark.parametrize(
    "text", ["", "0 0 4294967295", "1000 0 2", "0 1000 1", "1000 0 1 1001 1001 1", "1000 1000 65536"]
)
def test_another_map(text: str) -> None:
    assert "user map" in _problems(_GOOD._replace(uid_map=text))
    assert "group map" in _problems(_GOOD._replace(gid_map=text))


@pytest.mark.parametrize(
    ("point", "is_writable"),
    [
        ("/mnt", False),
        ("/mnt", True),
        ("/usr", True),
        ("/", True),
        ("/dev/null", True),
        ("/usr/local", True),
        ("/etc", False),
    ],
)
def test_mounts(point: str, is_writable: bool) -> None:
    assert point in _problems(_GOOD._replace(mounts={**_GOOD.mounts, point: is_writable}))


@pytest.mark.parametrize("point", ["/data/inner", "/tmp/inner"])
def test_what_lies_in_a_writable_place_may_be_writable(point: str) -> None:
    assert not _problems(_GOOD._replace(mounts={**_GOOD.mounts, point: True}))


def test_a_planned_mount_that_is_missing() -> None:
    """Without its mount, what is below a private directory would show."""
    mounts = {point: flag for point, flag in _GOOD.mounts.items() if point != "/tmp"}
    assert _problems(_GOOD._replace(mounts=mounts))


@pytest.mark.parametrize(
    ("written", "meant"),
    [("/plain", "/plain"), ("/with\\040space", "/with space"), ("/a\\012b\\134c", "/a\nb\\c"), ("/\\011", "/\t")],
)
def test_mount_points_are_unescaped(written: str, meant: str) -> None:
    assert verify._unescape(written) == meant


def test_without_namespaces_the_bounding_set_may_stay() -> None:
    """An ordinary user cannot empty it; with no_new_privs it has no effect."""
    plan = LaunchPlan(isolation="landlock")
    expected = Expected(plan, _DESCRIPTORS, _OUTER, host_id=70)
    facts = _GOOD._replace(status={**_STATUS, "CapBnd": "000001ffffffffff"})
    assert verify.problems(facts, expected) == []
    assert verify.problems(facts._replace(status={**_STATUS, "CapPrm": "1"}), expected)


def test_terminals_only_where_planned_and_always_there() -> None:
    with_terminals = _EXPECTED._replace(plan=_PLAN._replace(terminals=True))
    shown = _GOOD._replace(mounts={**_GOOD.mounts, "/dev/pts": True})
    assert "unplanned mount at /dev/pts" in _problems(shown)
    assert "nothing is mounted at /dev/pts" in _problems(_GOOD, with_terminals)
    assert not _problems(shown, with_terminals)


@pytest.mark.parametrize("point", ["/", "/tmp", "/usr", "/data"])
def test_a_mount_that_is_covered_by_another(point: str) -> None:
    assert f"a mount at {point} is covered by another" in _problems(_GOOD._replace(covered=(point,)))


def test_a_path_of_the_caller_may_cover_a_scratch_directory() -> None:
    plan = _PLAN._replace(binds=(*_PLAN.binds, Bind("/data", "/tmp", writable=True)))
    assert not _problems(_GOOD._replace(covered=("/tmp", "/usr/share/x")), _EXPECTED._replace(plan=plan))


@pytest.mark.needs("linux")
@pytest.mark.attack("S3-14")
@pytest.mark.claim("WC-FS-7")
@pytest.mark.parametrize("has_others", [True, False])
def test_a_process_cannot_hide_its_mounts_by_the_end_of_its_first_thread(
    has_others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a zombie then, without mounts, as one that has exited is. Its other threads could write the new file.

    Their mounts count, so that a program whose threads are still exiting is not taken for one that has lost a mount.
    """
    parse = verify._parse
    monkeypatch.setattr(verify, "_parse", lambda text: (parse(text)[0], False))  # each mount is read-only
    code = """
import ctypes, os, sys, threading, time
if sys.argv[1] == "True":
    threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(has_others)]) as process:
        try:
            stat = Path(f"/proc/{process.pid}/stat")
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
            assert verify.find_missing_mount(process.pid, ("/proc", "/a")) == ("/a" if has_others else "")
            assert verify.find_missing_mount(process.pid, ("/proc",)) == ""
        finally:
            process.kill()
    assert verify.find_missing_mount(process.pid, ("/a",)) == ""
    assert verify.find_missing_mount(os.getpid(), ("/no such place",)) == "/no such place"
