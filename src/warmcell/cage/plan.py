"""LaunchPlan: how to build one cage, as plain data with a strict codec. Pure module.

The policy decides and is compiled into a plan; the cage applies it and decides nothing.
"""

from __future__ import annotations

from .fast_imports import write_json
from .records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Sequence, Tuple

    #: Source and identity of each of the caller's paths, in the order of the plan.
    Sources = Tuple[Tuple[str, str], ...]


class Bind(NamedTuple):
    """A host path, already resolved, shown to the guest at `target`."""

    source: str
    target: str
    writable: bool = False
    #: "device:inode" when the policy was created; it must still be the same when the path is opened.
    identity: str = ""
    #: A device node, mounted without nodev.
    device: bool = False
    #: A path of the caller: the guest has its owner's access, even if the caller is root.
    as_owner: bool = False
    #: The order includes its tree as a descriptor: an overlay, whose upper directory is the source.
    given: bool = False


class Watch(NamedTuple):
    """Limits on the whole process tree that a watcher enforces where no cgroup does. 0: not watched."""

    memory_bytes: int = 0
    cpu_seconds: float = 0.0
    disk_bytes: int = 0
    #: Writable host directories whose growth counts as disk use.
    disk_paths: Tuple[str, ...] = ()
    #: Guest paths of overlays whose upper directories are among these: unlinked files on them count as well.
    overlays: Tuple[str, ...] = ()
    #: Those of `disk_paths` whose whole content counts, including what earlier guests wrote; and the devices that files
    #: of overlays report.
    disk_totals: Tuple[str, ...] = ()
    disk_devices: Tuple[int, ...] = ()
    #: Whether the guest shares a host user's limits on pipes and descriptors in flight with others.
    descriptors: bool = False
    #: NVIDIA devices whose use is measured, by the number of their node.
    gpus: Tuple[int, ...] = ()
    #: The limit on the memory of each of these devices.
    gpu_memory_bytes: int = 0

    @property
    def is_needed(self) -> bool:
        return bool(self.memory_bytes or self.cpu_seconds or self.disk_bytes or self.descriptors or self.gpus)


class LaunchPlan(NamedTuple):
    """The cage, in the order in which it is built."""

    #: "namespaces": the full cage; "landlock": the weaker named class; "none": only supervised.
    isolation: str = "namespaces"
    #: "loopback": its own network with only a loopback; "host": the host's network.
    network: str = "loopback"
    #: A port on the guest's loopback whose listener is passed to the supervisor's egress proxy; 0: none.
    listener_port: int = 0
    hostname: str = "sandbox"
    binds: Tuple[Bind, ...] = ()
    symlinks: Tuple[Tuple[str, str], ...] = ()
    files: Tuple[Tuple[str, str], ...] = ()
    #: The layers of an image, lowest first, which form the guest's root below a writable layer. Their targets are not
    #: used. Empty: the root consists of `binds`.
    layers: Tuple[Bind, ...] = ()
    #: A host directory with "upper" and "work", for a writable layer that outlives the cage. Empty: it is on the
    #: scratch tmpfs. At most one, and only with layers.
    upper: Tuple[Bind, ...] = ()
    #: The guest's ids in its user namespace. With 0, changes of owner and user succeed without effect.
    uid: int = 1000
    gid: int = 1000
    scratch_bytes: int = 0
    scratch_inodes: int = 0
    scratch_dirs: Tuple[Tuple[str, int], ...] = ()
    cwd: str = "/"
    rlimits: Tuple[Tuple[str, int], ...] = ()
    #: Guest paths: (path, writable). Empty: no Landlock.
    landlock: Tuple[Tuple[str, bool], ...] = ()
    seccomp: bool = True
    #: Without `seccomp`: whether the guest may use the kernel's keyrings.
    allow_keyrings: bool = True
    #: Allows new processes and exec. Threads always work.
    allow_spawn: bool = False
    #: Allows ptrace among the guest's own processes.
    allow_tracing: bool = False
    watch: Watch = Watch()
    #: Whether the cage has terminals, in its own devpts.
    terminals: bool = False
    #: The file in which a worker reports the paths that its program was refused; "": none.
    report_path: str = ""


def is_shared(bind: Bind, plan: LaunchPlan) -> bool:
    """Whether it is the same for every guest of the plan: not a caller's path, nor inside a guest's own one."""
    own = [path for path, _ in plan.scratch_dirs]
    own += [other.target for other in plan.binds if other.as_owner or other.writable]
    return not (bind.as_owner or bind.writable or any(is_below(bind.target, path) for path in own))


def is_below(path: str, place: str) -> bool:
    """Whether `path` is `place` or below it."""
    return (path + "/").startswith(place.rstrip("/") + "/")


def take_sources(plan: LaunchPlan) -> Tuple[LaunchPlan, Sources]:
    """Split a plan into one without the sources of the caller's paths, which many cells share, and the sources."""
    sources = tuple((bind.source, bind.identity) for bind in plan.binds if bind.as_owner)
    binds = tuple(bind._replace(source="", identity="") if bind.as_owner else bind for bind in plan.binds)
    return plan._replace(binds=binds), sources


def put_sources(binds: Sequence[Bind], data: Any) -> Tuple[Bind, ...]:
    """The inverse of `take_sources`, for the binds of a plan, given parsed JSON."""
    sources = _sequence(data)
    if len(sources) != len([bind for bind in binds if bind.as_owner]):
        raise PlanError("expected one source for each path of the caller")
    left = iter(sources)
    return tuple(_put_source(bind, next(left)) if bind.as_owner else bind for bind in binds)


def _put_source(bind: Bind, data: Any) -> Bind:
    if len(_sequence(data)) != 2:
        raise PlanError("expected a source and its identity")
    return bind._replace(source=_text(data[0]), identity=_text(data[1]))


class PlanError(ValueError):
    """The text is not a plan."""


def encode(plan: LaunchPlan) -> str:
    return write_json(to_json(plan))


def to_json(value: Any) -> Any:
    """Records as objects, tuples as lists."""
    if hasattr(value, "_asdict"):
        return {key: to_json(item) for key, item in value._asdict().items()}
    return [to_json(item) for item in value] if isinstance(value, tuple) else value


def decode(data: Any) -> LaunchPlan:
    """The inverse of `encode`, given parsed JSON. Every field must be present, of its type, and no other."""
    plan = _record(LaunchPlan, data)
    watch = _record(Watch, plan["watch"])
    for name in ("disk_paths", "overlays", "disk_totals"):
        watch[name] = tuple(_text(item) for item in _sequence(watch[name]))
    watch["disk_devices"] = tuple(_number(item) for item in _sequence(watch["disk_devices"]))
    watch["gpus"] = tuple(_number(item) for item in _sequence(watch["gpus"]))
    plan["binds"] = tuple(decode_binds(plan["binds"]))
    for name in ("layers", "upper"):
        plan[name] = tuple(decode_binds(plan[name]))
    plan["watch"] = Watch(**watch)
    plan["symlinks"] = _pairs(plan["symlinks"], str)
    plan["files"] = _pairs(plan["files"], str)
    plan["scratch_dirs"] = _pairs(plan["scratch_dirs"], int)
    plan["rlimits"] = _pairs(plan["rlimits"], int)
    plan["landlock"] = _pairs(plan["landlock"], bool)
    return LaunchPlan(**plan)


def encode_binds(binds: Sequence[Bind]) -> Any:
    """For JSON, as `decode_binds` expects them."""
    return [to_json(bind) for bind in binds]


def decode_binds(data: Any) -> List[Bind]:
    return [Bind(**_record(Bind, item)) for item in _sequence(data)]


def _record(kind: Any, data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != set(kind._fields):
        raise PlanError(f"not a {kind.__name__}")
    defaults = kind._field_defaults
    for name in kind._fields:
        if type(data[name]) not in _json_types(defaults.get(name, "")):
            raise PlanError(f"{kind.__name__}.{name} has the wrong type")
    return dict(data)


def _json_types(example: Any) -> Tuple[type, ...]:
    """The JSON types for values of the example's type. Fields without a default are text."""
    if hasattr(example, "_fields"):
        return (dict,)
    if isinstance(example, tuple):
        return (list,)
    return (int, float) if isinstance(example, float) else (type(example),)


def _sequence(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise PlanError("expected a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise PlanError("expected text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise PlanError("expected a number")
    return value


def _pairs(value: Any, second: type) -> Tuple[Tuple[Any, Any], ...]:
    pairs = []
    for item in _sequence(value):
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str) or type(item[1]) is not second:
            raise PlanError("expected pairs")
        pairs.append((item[0], item[1]))
    return tuple(pairs)
