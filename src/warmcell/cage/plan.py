"""LaunchPlan: everything that is done to one run, as plain data with a strict codec. Pure module.

The policy room decides and writes a plan; the cage carries it out and decides nothing.
"""

from __future__ import annotations

from .light import write_json
from .records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Sequence, Tuple


class Bind(NamedTuple):
    """A host path, already resolved, shown to the guest at `target`."""

    source: str
    target: str
    writable: bool = False
    #: "device:inode" when the policy was made; what is found there later must be the same.
    identity: str = ""
    #: A device node: keeps working as one.
    device: bool = False
    #: The caller named it, so the guest sees it as its owner would, whoever runs Warmcell.
    as_owner: bool = False


class Watch(NamedTuple):
    """Ceilings for the whole tree that init keeps by looking, where no cgroup keeps them. 0: not watched."""

    memory_bytes: int = 0
    cpu_seconds: float = 0.0
    disk_bytes: int = 0
    #: Writable host directories whose growth counts as disk use.
    disk_paths: Tuple[str, ...] = ()
    #: Whether it must leave others of its user their share of pipes and descriptors in flight.
    descriptors: bool = False

    @property
    def is_needed(self) -> bool:
        return bool(self.memory_bytes or self.cpu_seconds or self.disk_bytes or self.descriptors)


class LaunchPlan(NamedTuple):
    """What the cage builds, in the order in which it builds it."""

    #: "namespaces": the full cage; "landlock": the weaker named class; "none": only supervised.
    isolation: str = "namespaces"
    #: "loopback": own network with nothing but itself; "host": the host's network.
    network: str = "loopback"
    #: A port on the guest's loopback whose listener is handed to the supervisor's egress proxy; 0: none.
    listener_port: int = 0
    hostname: str = "sandbox"
    binds: Tuple[Bind, ...] = ()
    symlinks: Tuple[Tuple[str, str], ...] = ()
    files: Tuple[Tuple[str, str], ...] = ()
    scratch_bytes: int = 0
    scratch_inodes: int = 0
    scratch_dirs: Tuple[Tuple[str, int], ...] = ()
    cwd: str = "/"
    rlimits: Tuple[Tuple[str, int], ...] = ()
    #: Guest paths: (path, writable). Empty: no Landlock.
    landlock: Tuple[Tuple[str, bool], ...] = ()
    seccomp: bool = True
    #: New processes and exec. Without it, threads still work.
    allow_spawn: bool = False
    watch: Watch = Watch()
    #: Whether there are terminals: a devpts of the cage's own.
    terminals: bool = False
    #: Where a worker leaves note of the paths that its program was refused; "": nowhere.
    report_path: str = ""


def is_shared(bind: Bind, plan: LaunchPlan) -> bool:
    """Whether it is the same for every guest of the plan: nothing of a caller's, nothing on top of a guest's own."""
    own = [path for path, _ in plan.scratch_dirs]
    own += [other.target for other in plan.binds if other.as_owner or other.writable]
    return not (bind.as_owner or bind.writable or any(is_below(bind.target, path) for path in own))


def is_below(path: str, place: str) -> bool:
    """Or the place itself."""
    return (path + "/").startswith(place.rstrip("/") + "/")


class PlanError(ValueError):
    """The text is not a plan."""


def encode(plan: LaunchPlan) -> str:
    return write_json(plain(plan))


def plain(value: Any) -> Any:
    """As what JSON knows."""
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def decode(data: Any) -> LaunchPlan:
    """The inverse of `encode`, given parsed JSON. Every field must be there, of its type, and no other."""
    plan = _record(LaunchPlan, data)
    watch = _record(Watch, plan["watch"])
    watch["disk_paths"] = tuple(_text(item) for item in _sequence(watch["disk_paths"]))
    plan["binds"] = tuple(decode_binds(plan["binds"]))
    plan["watch"] = Watch(**watch)
    plan["symlinks"] = _pairs(plan["symlinks"], str)
    plan["files"] = _pairs(plan["files"], str)
    plan["scratch_dirs"] = _pairs(plan["scratch_dirs"], int)
    plan["rlimits"] = _pairs(plan["rlimits"], int)
    plan["landlock"] = _pairs(plan["landlock"], bool)
    return LaunchPlan(**plan)


def encode_binds(binds: Sequence[Bind]) -> Any:
    """As `decode_binds` takes them, ready for JSON."""
    return [plain(bind) for bind in binds]


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
    """What a value like this one looks like in JSON. Fields without a default are text."""
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


def _pairs(value: Any, second: type) -> Tuple[Tuple[Any, Any], ...]:
    pairs = []
    for item in _sequence(value):
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str) or type(item[1]) is not second:
            raise PlanError("expected pairs")
        pairs.append((item[0], item[1]))
    return tuple(pairs)
