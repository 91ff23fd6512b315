"""Effective policy in, LaunchPlan out. Pure module: all decisions are made, applying them is the cage's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warmcell.cage.plan import Bind, LaunchPlan, Watch
from warmcell.core.errors import PolicyViolation
from warmcell.core.types import MIB, EffectiveLimits
from warmcell.policy.host import HostLayout
from warmcell.policy.places import CODE_DIR, HOME_DIR, WORK_DIR, is_within
from warmcell.policy.resolve import EffectivePolicy, ResolvedPath

PROXY_PORT = 3128
REPORT_NAME = ".warmcell-report"

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

#: Everything that a guest may write unless the policy names more; all of it on one sized tmpfs.
_SCRATCH = ((CODE_DIR, 0o755), (WORK_DIR, 0o755), ("/tmp", 0o1777), ("/dev/shm", 0o1777), (HOME_DIR, 0o700))

_LINKS = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/var/tmp", "/tmp"),
    ("/etc/mtab", "/proc/self/mounts"),
)

_FILES = (
    (
        "/etc/passwd",
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"sandbox:x:1000:1000:sandbox:{HOME_DIR}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("/etc/group", "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"),
    ("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"),
    ("/etc/hostname", "sandbox\n"),
    ("/etc/resolv.conf", ""),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
)


def compile_plan(
    policy: EffectivePolicy, layout: HostLayout, runtime_paths: tuple[str, ...], real: Mapping[str, str] | None = None
) -> LaunchPlan:
    """The full cage for one kind of run. `real` says where those runtime paths lead that are links."""
    limits = policy.limits
    named = tuple(path.target for path in policy.paths)
    return LaunchPlan(
        isolation="namespaces",
        network="host" if policy.network == "host" else "loopback",
        listener_port=PROXY_PORT if policy.network == "proxy" else 0,
        hostname="sandbox",
        binds=_binds(policy, layout, runtime_paths, real or {}),
        # What lies in a path that the policy names is that path's: writing there would be writing on the host.
        symlinks=tuple(link for link in (*layout.symlinks, *_LINKS) if not _is_below(link[0], named)),
        files=tuple(file for file in _FILES if not _is_below(file[0], named)),
        scratch_bytes=limits.disk_mb * MIB,
        scratch_inodes=_inodes(limits),
        scratch_dirs=_SCRATCH,
        cwd=policy.work,
        # Init is one of them; a cgroup is to refuse first, because it counts what it refused.
        rlimits=_rlimits(limits, limits.processes + (2 if policy.uses_cgroup else 1)),
        landlock=_landlock(policy),
        seccomp=True,
        allow_spawn=policy.allow_spawn,
        watch=_watch(policy, tuple(path.target for path in _growing(policy.paths))),
        report_path=f"{CODE_DIR}/{REPORT_NAME}",
    )


def _inodes(limits: EffectiveLimits) -> int:
    return min(max(limits.disk_mb * 256, 16_384), 1 << 20)


def _binds(
    policy: EffectivePolicy, layout: HostLayout, runtime_paths: tuple[str, ...], real: Mapping[str, str]
) -> tuple[Bind, ...]:
    """Shallow targets first, so that what lies deeper lands on top and means what it says."""
    _refuse_hidden_toolchain(policy.paths, runtime_paths)
    named = [Bind(path.source, path.target, path.writable, path.identity, as_owner=True) for path in policy.paths]
    taken = tuple(bind.target for bind in named)
    system = [Bind(path, path) for path in layout.directories]
    system += [Bind(source, target) for source, target in layout.etc if not _is_below(target, taken)]
    covered = tuple(bind.target for bind in system)
    system += [Bind(real.get(path, path), path) for path in _outermost(runtime_paths) if not _is_below(path, covered)]
    # Who maps /dev/zero gets shared memory that nobody could count; /dev/full reads the same and cannot be mapped.
    stand_ins = {} if policy.uses_cgroup else {"zero": "full"}
    system += [Bind(f"/dev/{stand_ins.get(name, name)}", f"/dev/{name}", device=True) for name in _DEVICES]
    merged = [bind for bind in system if bind.target not in taken] + named
    return tuple(sorted(merged, key=lambda bind: bind.target.rstrip("/").count("/")))


def _refuse_hidden_toolchain(paths: tuple[ResolvedPath, ...], runtime_paths: tuple[str, ...]) -> None:
    """Something else shown where the interpreter is: there may be nothing in it to mount the interpreter on."""
    for path in paths:
        for needed in runtime_paths:
            if path.source != path.target and is_within(needed, path.target):
                raise PolicyViolation(
                    f"{path.target!r} would cover {needed!r}, which the language needs", hint="show it at another place"
                )


def _outermost(paths: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    for path in sorted(dict.fromkeys(paths), key=len):
        if not _is_below(path, kept):
            kept.append(path)
    return kept


def _is_below(path: str, targets: Iterable[str]) -> bool:
    """Whether `path` is one of `targets` or lies in one."""
    return any(is_within(path, target) for target in targets)


def _growing(paths: tuple[ResolvedPath, ...]) -> list[ResolvedPath]:
    """The writable ones, each piece of the host once: what lies in another of them is counted there."""
    writable = [path for path in paths if path.writable]
    return [path for path in writable if not any(_is_part_of(path, other) for other in writable)]


def _is_part_of(path: ResolvedPath, other: ResolvedPath) -> bool:
    return is_within(path.source, other.source) and (path.source != other.source or path.target > other.target)


def _rlimits(limits: EffectiveLimits, most_processes: int = 0) -> tuple[tuple[str, int], ...]:
    # 1, not 0: only that value also keeps the kernel from piping a core to the host's crash handler.
    rlimits = [("core", 1), ("nofile", limits.open_files), ("fsize", limits.disk_mb * MIB), ("memlock", 8 * MIB)]
    rlimits += [("sigpending", 1024), ("msgqueue", 819_200), ("rtprio", 0), ("nice", 0)]
    if most_processes:
        rlimits.append(("nproc", most_processes))
    return tuple(rlimits)


def _landlock(policy: EffectivePolicy) -> tuple[tuple[str, bool], ...]:
    """The root holds only what the guest may read, so reading is granted once; writing is granted by name."""
    writable = [path for path, _ in _SCRATCH if not path.startswith("/dev/")]
    writable += [path.target for path in policy.paths if path.writable]
    return (("/", False), ("/dev", True), *((path, True) for path in dict.fromkeys(writable)))


def _watch(policy: EffectivePolicy, disk_paths: tuple[str, ...]) -> Watch:
    limits = policy.limits
    return Watch(
        memory_bytes=0 if policy.uses_cgroup else limits.memory_mb * MIB,
        cpu_seconds=float(limits.cpu_seconds or 0.0),
        disk_bytes=limits.disk_mb * MIB if disk_paths else 0,
        disk_paths=disk_paths,
        descriptors=True,
    )


def compile_open_plan(
    policy: EffectivePolicy, layout: HostLayout, runtime_paths: tuple[str, ...], home: str
) -> LaunchPlan:
    """For the classes that share the host's root: `home` is a private directory made for this run."""
    is_landlock = policy.isolation == "landlock"
    limits = policy.limits
    return LaunchPlan(
        isolation=policy.isolation,
        network="host" if policy.network == "host" else "loopback",
        cwd=next((path.source for path in policy.paths if path.target == policy.work), f"{home}{WORK_DIR}"),
        rlimits=_rlimits(limits),
        landlock=_open_landlock(policy, layout, runtime_paths, home) if is_landlock else (),
        seccomp=is_landlock,
        allow_spawn=policy.allow_spawn,
        watch=_watch(policy, (home, *(path.source for path in _growing(policy.paths)))),
        report_path=f"{home}{CODE_DIR}/{REPORT_NAME}",
    )


def _open_landlock(
    policy: EffectivePolicy, layout: HostLayout, runtime_paths: tuple[str, ...], home: str
) -> tuple[tuple[str, bool], ...]:
    readable = (*layout.directories, *(source for source, _ in layout.etc), *runtime_paths, "/proc")
    devices = tuple((f"/dev/{name}", True) for name in _DEVICES)
    named = tuple((path.source, path.writable) for path in policy.paths)
    return (*((path, False) for path in dict.fromkeys(readable)), *devices, (home, True), *named)
