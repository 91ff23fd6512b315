"""Compiles an effective policy into a LaunchPlan. Pure module: it decides everything, the cage only applies it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from warmcell.cage.plan import Bind, LaunchPlan, Watch
from warmcell.core.errors import PolicyViolation
from warmcell.core.records import replace
from warmcell.core.types import MIB, EffectiveLimits
from warmcell.policy.places import CODE_DIR, HOME_DIR, OTHER_TMP, WORK_DIR, canonical_target, is_within
from warmcell.policy.resolve import EffectivePolicy, HostLayout, ImageRoot, ResolvedPath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.policy.gpu import GpuGrant

PROXY_PORT = 3128
REPORT_NAME = ".warmcell-report"

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

#: The directories that a guest may write by default, all on one sized tmpfs.
_SHARED_MEMORY = "/dev/shm"
_SCRATCH = ((CODE_DIR, 0o755), (WORK_DIR, 0o755), ("/tmp", 0o1777), (_SHARED_MEMORY, 0o1777), (HOME_DIR, 0o700))

_LINKS = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    (OTHER_TMP, "/tmp"),
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
#: Those that replace the image's own, which are missing or describe the host that built it.
_FILES_OF_IMAGES = frozenset({"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"})


def compile_plan(
    policy: EffectivePolicy, layout: HostLayout, runtime_paths: tuple[str, ...], real: Mapping[str, str] | None = None
) -> LaunchPlan:
    """The plan of a cage in namespaces. `real` maps runtime paths that are links to their targets."""
    if policy.image is not None:
        return _compile_image_plan(replace(policy, image=None), policy.image, layout)
    limits = policy.limits
    named = tuple(path.target for path in policy.paths)
    scratch = _scratch((*named, *runtime_paths))
    return LaunchPlan(
        isolation="namespaces",
        network="host" if policy.network == "host" else "loopback",
        listener_port=PROXY_PORT if policy.network == "proxy" else 0,
        hostname="sandbox",
        binds=_binds(policy, layout, runtime_paths, real or {}),
        # Not inside a path of the policy: that would write to the host.
        symlinks=tuple(link for link in (*layout.symlinks, *_LINKS) if not _is_below(link[0], (*named, *scratch))),
        files=tuple(file for file in _FILES if not _is_below(file[0], named)),
        scratch_bytes=limits.disk_mb * MIB,
        scratch_inodes=min(max(limits.disk_mb * 256, 16_384), 1 << 20),
        scratch_dirs=tuple(scratch.items()),
        cwd=policy.work,
        # Init counts too. A cgroup must reach its limit first, because it counts refusals.
        rlimits=_rlimits(limits, limits.processes + (2 if policy.uses_cgroup else 1)),
        landlock=_landlock(policy, scratch),
        seccomp=True,
        allow_spawn=policy.allow_spawn,
        allow_tracing=policy.allow_tracing,
        watch=_watch(policy, _find_counted_paths(policy.paths), lambda path: path.target),
        report_path=f"{CODE_DIR}/{REPORT_NAME}",
    )


def replace_sources(plan: LaunchPlan, before: EffectivePolicy, after: EffectivePolicy) -> LaunchPlan | None:
    """The plan of `before` with the paths of `after`; None if the policies differ in more than the paths' sources."""
    if before.image is not None or replace(before, paths=()) != replace(after, paths=()):
        return None
    if [_layout_of(path) for path in before.paths] != [_layout_of(path) for path in after.paths]:
        return None
    growing = [[path.target for path in _find_counted_paths(policy.paths)] for policy in (before, after)]
    if growing[0] != growing[1]:
        return None
    named = {path.target: path for path in after.paths}
    if len(named) < len(after.paths):
        return None
    binds = (
        bind._replace(source=named[bind.target].source, identity=named[bind.target].identity) if bind.as_owner else bind
        for bind in plan.binds
    )
    return plan._replace(binds=tuple(binds))


def _layout_of(path: ResolvedPath) -> tuple[str, bool, bool, tuple[int, ...], bool]:
    """Everything of a path that a plan depends on, except its source. A path shown elsewhere may cover others."""
    return path.target, path.writable, path.source == path.target, path.overlay_devices, path.is_own


def _compile_image_plan(policy: EffectivePolicy, image: ImageRoot, layout: HostLayout) -> LaunchPlan:
    """The same cage with an image as its root: only devices and allowed paths are the host's."""
    plan = compile_plan(policy, HostLayout((), missing_devices=layout.missing_devices), ())
    named = tuple(path.target for path in policy.paths)
    plan = plan._replace(
        symlinks=tuple(link for link in plan.symlinks if link[0].startswith("/dev/")),
        files=tuple((path, text) for path, text in _FILES if path in _FILES_OF_IMAGES and not _is_below(path, named)),
        layers=tuple(Bind(path.source, "/", False, path.identity, as_owner=True) for path in image.layers),
        uid=image.uid,
        gid=image.gid,
        scratch_dirs=_scratch_beside(image),
        # A work directory that the policy shows takes precedence over the image's.
        cwd=plan.cwd if policy.work in named else image.work_dir or plan.cwd,
        # The root is the guest's own; read-only parts are mounted read-only.
        landlock=(("/", True), *_gpu_landlock(policy)),
    )
    return plan if image.upper is None else _with_kept_root(plan, image.upper, policy.limits)


def _with_kept_root(plan: LaunchPlan, upper: ResolvedPath, limits: EffectiveLimits) -> LaunchPlan:
    """The guest's writes are kept in a host directory, so only /dev and /proc are covered by other mounts."""
    watch = plan.watch
    is_shared = watch.disk_totals != watch.disk_paths
    return plan._replace(
        upper=(Bind(upper.source, "/", True, upper.identity, as_owner=True),),
        scratch_dirs=((_SHARED_MEMORY, 0o1777),),
        report_path=f"{_SHARED_MEMORY}/{REPORT_NAME}",
        watch=watch._replace(
            disk_bytes=limits.disk_mb * MIB,
            disk_paths=(*watch.disk_paths, upper.source),
            disk_totals=watch.disk_totals if is_shared else (*watch.disk_totals, upper.source),
            overlays=("/",),
        ),
    )


def _scratch_beside(image: ImageRoot) -> tuple[tuple[str, int], ...]:
    """The scratch directories of an image, with those that it names but lacks. The user's home is its own."""
    places = tuple(place for place in _SCRATCH if place[0] != HOME_DIR or not image.home)
    taken = tuple(path for path, _ in places)
    return (*places, *((path, 0o755) for path in dict.fromkeys(image.missing) if not _is_below(path, taken)))


def _binds(
    policy: EffectivePolicy, layout: HostLayout, runtime_paths: tuple[str, ...], real: Mapping[str, str]
) -> tuple[Bind, ...]:
    """Shallow targets first, so that deeper ones are mounted on top."""
    _refuse_hidden_toolchain(policy.paths, runtime_paths)
    named = [
        Bind(path.source, path.target, path.writable, path.identity, as_owner=True, given=bool(path.overlay_devices))
        for path in policy.paths
    ]
    taken = tuple(bind.target for bind in named)
    system = [Bind(path, path) for path in layout.directories]
    system += [Bind(source, target) for source, target in layout.etc if not _is_below(target, taken)]
    covered = tuple(bind.target for bind in system)
    system += [Bind(real.get(path, path), path) for path in _outermost(runtime_paths) if not _is_below(path, covered)]
    system += [Bind(f"/dev/{source}", f"/dev/{name}", device=True) for source, name in _devices(policy, layout)]
    if policy.gpu is not None:
        system += _gpu_binds(policy.gpu, layout, tuple(bind.target for bind in system))
    merged = [bind for bind in system if bind.target not in taken] + named
    return tuple(sorted(merged, key=lambda bind: bind.target.rstrip("/").count("/")))


def _gpu_binds(gpu: GpuGrant, layout: HostLayout, covered: tuple[str, ...]) -> list[Bind]:
    """The driver's files and nodes, without files that the guest sees anyway, such as those of /lib in /usr/lib."""
    files = {canonical_target(target, layout.symlinks): source for source, target in gpu.files}
    binds = [Bind(source, target) for target, source in files.items() if not _is_below(target, covered)]
    return binds + [Bind(source, target, device=True) for source, target in gpu.nodes]


def _devices(policy: EffectivePolicy, layout: HostLayout) -> list[tuple[str, str]]:
    """Pairs of the host's device and its name in the guest.

    A mapping of /dev/zero is shared memory that only a cgroup counts. Without one, guests get /dev/full instead, which
    reads the same and cannot be mapped; without /dev/full, they get no /dev/zero.
    """
    stand_ins = {} if policy.uses_cgroup else {"zero": "full"}
    sources = ((stand_ins.get(name, name), name) for name in DEVICES)
    return [(source, name) for source, name in sources if source not in layout.missing_devices]


def _refuse_hidden_toolchain(paths: tuple[ResolvedPath, ...], runtime_paths: tuple[str, ...]) -> None:
    """Refuse paths that would cover the interpreter: it might have no mount point below them."""
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


def _find_counted_paths(paths: tuple[ResolvedPath, ...]) -> list[ResolvedPath]:
    """The writable paths without those inside another one, so that no file is counted twice."""
    writable = [path for path in paths if path.writable]
    return [path for path in writable if not any(_is_part_of(path, other) for other in writable)]


def _is_part_of(path: ResolvedPath, other: ResolvedPath) -> bool:
    return is_within(path.source, other.source) and (path.source != other.source or path.target > other.target)


def _rlimits(limits: EffectiveLimits, most_processes: int = 0) -> tuple[tuple[str, int], ...]:
    # 1, not 0: with 0 the kernel still pipes core dumps to the host's crash handler.
    rlimits = [("core", 1), ("nofile", limits.open_files), ("fsize", limits.disk_mb * MIB), ("memlock", 8 * MIB)]
    rlimits += [("sigpending", 1024), ("msgqueue", 819_200), ("rtprio", 0), ("nice", 0)]
    if most_processes:
        rlimits.append(("nproc", most_processes))
    return tuple(rlimits)


def _scratch(shown: Iterable[str]) -> dict[str, int]:
    """The mode of each directory that a guest may write by default. `shown`: host paths in the cage."""
    has_paths_there = any(path.startswith(f"{OTHER_TMP}/") for path in shown)
    return {**dict(_SCRATCH), OTHER_TMP: 0o1777} if has_paths_there else dict(_SCRATCH)


def _landlock(policy: EffectivePolicy, scratch: Iterable[str]) -> tuple[tuple[str, bool], ...]:
    """The root contains only what the guest may read, so one rule allows reading; writing is allowed by path."""
    writable = [path for path in scratch if not path.startswith("/dev/")]
    writable += [path.target for path in policy.paths if path.writable]
    return (("/", False), ("/dev", True), *((path, True) for path in dict.fromkeys(writable)), *_gpu_landlock(policy))


def _gpu_landlock(policy: EffectivePolicy) -> tuple[tuple[str, bool], ...]:
    """CUDA must write /proc/self/task/TID/comm to name its threads; otherwise it fails with error 304."""
    return () if policy.gpu is None else (("/proc", True),)


def _watch(policy: EffectivePolicy, counted: list[ResolvedPath], place: Callable[[ResolvedPath], str]) -> Watch:
    """`place`: where the watcher finds a path. What a path of the host contained before is not the guest's."""
    limits = policy.limits
    is_shared = any(not (path.is_own or path.overlay_devices) for path in counted)
    whole = [path for path in counted if path.overlay_devices or not is_shared]
    return Watch(
        memory_bytes=0 if policy.uses_cgroup else limits.memory_mb * MIB,
        cpu_seconds=float(limits.cpu_seconds or 0.0),
        disk_bytes=limits.disk_mb * MIB if counted else 0,
        disk_paths=tuple(map(place, counted)),
        disk_totals=tuple(map(place, whole)),
        disk_devices=tuple(device for path in policy.paths for device in path.overlay_devices),
        descriptors=True,
        gpus=() if policy.gpu is None else policy.gpu.measurable,
        gpu_memory_bytes=0 if policy.gpu is None else (limits.gpu_memory_mb or 0) * MIB,
    )


def compile_open_plan(
    policy: EffectivePolicy, layout: HostLayout, runtime_paths: tuple[str, ...], home: str
) -> LaunchPlan:
    """The plan for the classes that share the host's root. `home` is a private directory for this run."""
    is_landlock = policy.isolation == "landlock"
    limits = policy.limits
    watch = _watch(policy, _find_counted_paths(policy.paths), lambda path: path.source)
    return LaunchPlan(
        isolation=policy.isolation,
        network="host" if policy.network == "host" else "loopback",
        cwd=next((path.source for path in policy.paths if path.target == policy.work), f"{home}{WORK_DIR}"),
        rlimits=_rlimits(limits),
        landlock=_open_landlock(policy, layout, runtime_paths, home) if is_landlock else (),
        seccomp=is_landlock,
        allow_keyrings=policy.enforced.enforcer != "bubblewrap",
        allow_spawn=policy.allow_spawn,
        watch=watch._replace(disk_bytes=limits.disk_mb * MIB, disk_paths=(home, *watch.disk_paths)),
        report_path=f"{home}{CODE_DIR}/{REPORT_NAME}",
    )


def _open_landlock(
    policy: EffectivePolicy, layout: HostLayout, runtime_paths: tuple[str, ...], home: str
) -> tuple[tuple[str, bool], ...]:
    readable = (*layout.directories, *(source for source, _ in layout.etc), *runtime_paths, "/proc")
    devices = tuple((f"/dev/{name}", True) for name in DEVICES if name not in layout.missing_devices)
    named = tuple((path.source, path.writable) for path in policy.paths)
    return (*((path, False) for path in dict.fromkeys(readable)), *devices, (home, True), *named)
