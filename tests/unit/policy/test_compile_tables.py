"""What an effective policy becomes for the cage: the whole plan, and what each difference in the policy changes in it."""

from __future__ import annotations

from typing import Any

import pytest

from warmcell.cage.plan import Bind, LaunchPlan, Watch
from warmcell.core.errors import PolicyViolation
from warmcell.core.records import replace
from warmcell.core.types import EffectiveLimits, Enforced
from warmcell.policy.compile import compile_open_plan, compile_plan, replace_sources
from warmcell.policy.resolve import EffectivePolicy, HostLayout, ImageRoot, ResolvedPath

MIB = 1024 * 1024
LAYOUT = HostLayout(("/usr", "/opt"), (("/bin", "usr/bin"),), (("/etc/ssl", "/etc/ssl"), ("/real/ld.so", "/etc/ld.so")))
RUNTIME = ("/usr/bin/python3", "/python/lib", "/python")
POLICY = EffectivePolicy(
    isolation="namespaces",
    network="none",
    network_rules=(),
    paths=(),
    allow_spawn=False,
    env={},
    limits=EffectiveLimits(memory_mb=64, cpu_seconds=3, processes=7, open_files=99, disk_mb=100),
    uses_cgroup=True,
    enforced=Enforced(),
)
READ = ResolvedPath("/srv/data", "/data", False, "1:2")
WRITE = ResolvedPath("/srv/out", "/data/out", True, "1:3")

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
DEVICE_BINDS = tuple(Bind(path, path, device=True) for path in DEVICES)
DIRECTORY_BINDS = (Bind("/usr", "/usr"), Bind("/opt", "/opt"))
ETC_BINDS = (Bind("/etc/ssl", "/etc/ssl"), Bind("/real/ld.so", "/etc/ld.so"))
RLIMITS = (
    ("core", 1),
    ("nofile", 99),
    ("fsize", 100 * MIB),
    ("memlock", 8 * MIB),
    ("sigpending", 1024),
    ("msgqueue", 819_200),
    ("rtprio", 0),
    ("nice", 0),
)
LINKS = (
    ("/bin", "usr/bin"),
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/var/tmp", "/tmp"),
    ("/etc/mtab", "/proc/self/mounts"),
)
FILES = (
    (
        "/etc/passwd",
        "root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("/etc/group", "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"),
    ("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"),
    ("/etc/hostname", "sandbox\n"),
    ("/etc/resolv.conf", ""),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
)
LANDLOCK = (
    ("/", False),
    ("/dev", True),
    ("/code", True),
    ("/work", True),
    ("/tmp", True),
    ("/home/sandbox", True),
)
SCRATCH = (("/code", 0o755), ("/work", 0o755), ("/tmp", 0o1777), ("/dev/shm", 0o1777), ("/home/sandbox", 0o700))
PLAN = LaunchPlan(
    isolation="namespaces",
    network="loopback",
    listener_port=0,
    hostname="sandbox",
    binds=(*DIRECTORY_BINDS, Bind("/python", "/python"), *ETC_BINDS, *DEVICE_BINDS),
    symlinks=LINKS,
    files=FILES,
    scratch_bytes=100 * MIB,
    scratch_inodes=25_600,
    scratch_dirs=SCRATCH,
    cwd="/work",
    rlimits=(*RLIMITS, ("nproc", 9)),
    landlock=LANDLOCK,
    seccomp=True,
    allow_spawn=False,
    watch=Watch(descriptors=True, cpu_seconds=3.0),
    report_path="/code/.warmcell-report",
)


def with_limits(**limits: Any) -> dict[str, Any]:
    return {"limits": replace(POLICY.limits, **limits)}


def fsize(megabytes: int) -> tuple[tuple[str, int], ...]:
    return (*RLIMITS[:2], ("fsize", megabytes * MIB), *RLIMITS[3:], ("nproc", 9))


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ({}, {}),
        ({"network": "host"}, {"network": "host"}),
        ({"network": "proxy"}, {"listener_port": 3128}),
        ({"allow_spawn": True}, {"allow_spawn": True}),
        (
            {"uses_cgroup": False},
            {
                "rlimits": (*RLIMITS, ("nproc", 8)),
                "watch": Watch(descriptors=True, memory_bytes=64 * MIB, cpu_seconds=3.0),
                "binds": tuple(
                    bind._replace(source="/dev/full") if bind.target == "/dev/zero" else bind for bind in PLAN.binds
                ),
            },
        ),
        (with_limits(cpu_seconds=None), {"watch": Watch(descriptors=True)}),
        (with_limits(processes=1), {"rlimits": (*RLIMITS, ("nproc", 3))}),
        (with_limits(disk_mb=64), {"scratch_bytes": 64 * MIB, "scratch_inodes": 16_384, "rlimits": fsize(64)}),
        (with_limits(disk_mb=63), {"scratch_bytes": 63 * MIB, "scratch_inodes": 16_384, "rlimits": fsize(63)}),
        (with_limits(disk_mb=65), {"scratch_bytes": 65 * MIB, "scratch_inodes": 16_640, "rlimits": fsize(65)}),
        (with_limits(disk_mb=8192), {"scratch_bytes": 8192 * MIB, "scratch_inodes": 1 << 20, "rlimits": fsize(8192)}),
    ],
)
def test_the_full_cage(said: dict[str, Any], changed: dict[str, Any]) -> None:
    assert compile_plan(replace(POLICY, **said), LAYOUT, RUNTIME) == PLAN._replace(**changed)


IMAGE = ImageRoot((ResolvedPath("/store/1", "/", False, "1:9"),), 0, 5, "/root", {"A": "1"})
IMAGE_PLAN = PLAN._replace(
    binds=DEVICE_BINDS,
    symlinks=tuple(link for link in LINKS if link[0].startswith("/dev/")),
    files=tuple(file for file in FILES if file[0] in ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")),
    layers=(Bind("/store/1", "/", False, "1:9", as_owner=True),),
    uid=0,
    gid=5,
    scratch_dirs=SCRATCH[:-1],
    landlock=(("/", True),),
)


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ({}, {}),
        ({"home": ""}, {"scratch_dirs": SCRATCH}),
        ({"work_dir": "/app"}, {"cwd": "/app"}),
        ({"missing": ("/app", "/app", "/work/x")}, {"scratch_dirs": (*SCRATCH[:-1], ("/app", 0o755))}),
    ],
)
def test_an_image_takes_the_place_of_the_hosts_system(said: dict[str, Any], changed: dict[str, Any]) -> None:
    policy = replace(POLICY, image=replace(IMAGE, **said))
    assert compile_plan(policy, LAYOUT, RUNTIME) == IMAGE_PLAN._replace(**changed)


def test_a_work_directory_of_the_caller_is_where_programs_of_an_image_start() -> None:
    work = ResolvedPath("/srv/work", "/work", True, "1:5")
    policy = replace(POLICY, paths=(work,), image=replace(IMAGE, work_dir="/app"))
    assert compile_plan(policy, LAYOUT, RUNTIME).cwd == "/work"


def test_paths_land_on_top_of_what_lies_above_them() -> None:
    """The deeper one was named first, and is still mounted after the one that it lies in."""
    shallow = (*DIRECTORY_BINDS, Bind("/python", "/python"), Bind("/srv/data", "/data", False, "1:2", as_owner=True))
    deep = (*ETC_BINDS, *DEVICE_BINDS, Bind("/srv/out", "/data/out", True, "1:3", as_owner=True))
    assert compile_plan(replace(POLICY, paths=(WRITE, READ)), LAYOUT, RUNTIME) == PLAN._replace(
        binds=(*shallow, *deep),
        landlock=(*LANDLOCK, ("/data/out", True)),
        watch=Watch(descriptors=True, cpu_seconds=3.0, disk_bytes=100 * MIB, disk_paths=("/data/out",)),
    )


OTHERS = (replace(WRITE, source="/srv/other", identity="1:9"), replace(READ, source="/mnt/data", identity="2:2"))


def test_a_plan_is_the_same_for_other_sources_of_its_paths() -> None:
    before, after = replace(POLICY, paths=(WRITE, READ)), replace(POLICY, paths=OTHERS)
    changed = replace_sources(compile_plan(before, LAYOUT, RUNTIME), before, after)
    assert changed == compile_plan(after, LAYOUT, RUNTIME)


@pytest.mark.parametrize(
    ("paths", "others"),
    [
        (OTHERS[:1], {}),
        ((OTHERS[0], replace(OTHERS[1], writable=True)), {}),
        ((OTHERS[0], replace(OTHERS[1], target="/elsewhere")), {}),
        ((OTHERS[0], replace(OTHERS[1], source="/data")), {}),
        ((OTHERS[0], replace(OTHERS[1], overlay_devices=(1,))), {}),
        ((replace(OTHERS[0], target="/data"), OTHERS[1]), {}),
        (OTHERS, {"network": "proxy"}),
        (OTHERS, {"allow_spawn": True}),
        (OTHERS, with_limits(disk_mb=5)),
        (OTHERS, {"image": ImageRoot((), 0, 0, "", {})}),
    ],
)
def test_any_other_difference_needs_a_plan_of_its_own(paths: tuple[ResolvedPath, ...], others: dict[str, Any]) -> None:
    before = replace(POLICY, paths=(WRITE, READ))
    assert (
        replace_sources(compile_plan(before, LAYOUT, RUNTIME), before, replace(POLICY, paths=paths, **others)) is None
    )


def test_a_source_inside_another_is_counted_there_and_needs_a_plan_of_its_own() -> None:
    two = (WRITE, ResolvedPath("/srv/more", "/more", True, "1:4"))
    before, after = replace(POLICY, paths=two), replace(POLICY, paths=(two[0], replace(two[1], source="/srv/out/more")))
    assert replace_sources(compile_plan(before, LAYOUT, RUNTIME), before, after) is None


def test_a_named_path_is_left_as_it_is() -> None:
    """Nothing of ours is written into it, and nothing of the system's is mounted in its place."""
    paths = (ResolvedPath("/etc", "/etc", True, "1:4"), ResolvedPath("/usr", "/usr", False, "1:5"))
    named = tuple(Bind(path.source, path.target, path.writable, path.identity, as_owner=True) for path in paths)
    assert compile_plan(replace(POLICY, paths=paths), LAYOUT, RUNTIME) == PLAN._replace(
        binds=(Bind("/opt", "/opt"), Bind("/python", "/python"), *named, *DEVICE_BINDS),
        symlinks=LINKS[:-1],
        files=(),
        landlock=(*LANDLOCK, ("/etc", True)),
        watch=Watch(descriptors=True, cpu_seconds=3.0, disk_bytes=100 * MIB, disk_paths=("/etc",)),
    )


def test_work_that_is_the_hosts_is_granted_once() -> None:
    work = ResolvedPath("/home/me/project", "/work", True, "1:6")
    plan = compile_plan(replace(POLICY, paths=(work,)), LAYOUT, RUNTIME)
    assert plan.landlock == LANDLOCK
    assert plan.watch == Watch(descriptors=True, cpu_seconds=3.0, disk_bytes=100 * MIB, disk_paths=("/work",))


@pytest.mark.parametrize(
    ("runtime", "real", "binds"),
    [
        ((), None, ()),
        (("/usr", "/opt/node/bin"), None, ()),
        (("/usrlocal",), {}, (Bind("/usrlocal", "/usrlocal"),)),
        (("/python",), {"/python": "/store/python3.12", "/x": "/y"}, (Bind("/store/python3.12", "/python"),)),
        (("/b/c", "/b", "/b", "/bcd"), None, (Bind("/b", "/b"), Bind("/bcd", "/bcd"))),
    ],
)
def test_what_a_language_needs(runtime: tuple[str, ...], real: dict[str, str] | None, binds: tuple[Bind, ...]) -> None:
    expected = PLAN._replace(binds=(*DIRECTORY_BINDS, *binds, *ETC_BINDS, *DEVICE_BINDS))
    assert compile_plan(POLICY, LAYOUT, runtime, real) == expected


@pytest.mark.parametrize("target", ["/python", "/python/lib", "/usr"])
def test_a_path_cannot_hide_the_language(target: str) -> None:
    hiding = replace(POLICY, paths=(ResolvedPath("/srv/other", target, False, "1:7"),))
    with pytest.raises(PolicyViolation, match=f"'{target}' would cover") as caught:
        compile_plan(hiding, LAYOUT, RUNTIME)
    assert caught.value.hint == "show it at another place"
    itself = replace(POLICY, paths=(ResolvedPath(target, target, False, "1:7"),))
    assert Bind(target, target, False, "1:7", as_owner=True) in compile_plan(itself, LAYOUT, RUNTIME).binds


@pytest.mark.parametrize(
    ("paths", "watched"),
    [
        ((("/a", "/a", False),), ()),
        ((("/a", "/a", True), ("/a/b", "/b", True)), ("/a",)),
        ((("/a/b", "/b", True), ("/a", "/a", True)), ("/a",)),
        ((("/a", "/x", True), ("/a", "/y", True)), ("/x",)),
        ((("/a", "/y", True), ("/a", "/x", True)), ("/x",)),
        ((("/a", "/a", False), ("/a/b", "/b", True)), ("/b",)),
        ((("/a", "/a", True), ("/ab", "/ab", True)), ("/a", "/ab")),
    ],
)
def test_each_piece_of_the_host_is_counted_once(paths: tuple[Any, ...], watched: tuple[str, ...]) -> None:
    policy = replace(POLICY, paths=tuple(ResolvedPath(*path, "1:8") for path in paths))
    expected = Watch(descriptors=True, cpu_seconds=3.0, disk_bytes=100 * MIB if watched else 0, disk_paths=watched)
    assert compile_plan(policy, LAYOUT, RUNTIME).watch == expected


READABLE = ("/usr", "/opt", "/etc/ssl", "/real/ld.so", "/usr/bin/python3", "/python/lib", "/python", "/proc")
OPEN_LANDLOCK = (*((path, False) for path in READABLE), *((path, True) for path in DEVICES), ("/run/home", True))
OPEN_WATCH = Watch(descriptors=True, cpu_seconds=3.0, disk_bytes=100 * MIB, disk_paths=("/run/home",))
OPEN_PLAN = LaunchPlan(
    isolation="landlock",
    network="loopback",
    cwd="/run/home/work",
    rlimits=RLIMITS,
    landlock=OPEN_LANDLOCK,
    seccomp=True,
    allow_spawn=False,
    watch=OPEN_WATCH,
    report_path="/run/home/code/.warmcell-report",
)


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ({}, {}),
        ({"isolation": "none"}, {"isolation": "none", "landlock": (), "seccomp": False}),
        ({"network": "host"}, {"network": "host"}),
        ({"allow_spawn": True}, {"allow_spawn": True}),
        ({"uses_cgroup": False}, {"watch": OPEN_WATCH._replace(memory_bytes=64 * MIB)}),
        (with_limits(cpu_seconds=None), {"watch": OPEN_WATCH._replace(cpu_seconds=0.0)}),
        (
            {"paths": (WRITE, READ)},
            {
                "landlock": (*OPEN_LANDLOCK, ("/srv/out", True), ("/srv/data", False)),
                "watch": OPEN_WATCH._replace(disk_paths=("/run/home", "/srv/out")),
            },
        ),
    ],
)
def test_the_classes_that_share_the_hosts_root(said: dict[str, Any], changed: dict[str, Any]) -> None:
    policy = replace(replace(POLICY, isolation="landlock"), **said)
    assert compile_open_plan(policy, LAYOUT, RUNTIME, "/run/home") == OPEN_PLAN._replace(**changed)


def test_what_is_read_twice_is_granted_once() -> None:
    policy = replace(POLICY, isolation="landlock")
    assert compile_open_plan(policy, LAYOUT, (*RUNTIME, "/usr"), "/run/home") == OPEN_PLAN
