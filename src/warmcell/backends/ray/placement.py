"""Which node gets the next run. Pure module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from warmcell.core.records import dataclass

if TYPE_CHECKING:
    from warmcell.core.types import BackendCapabilities

#: With this custom resource on any node, only nodes that have it are used.
RESOURCE = "warmcell"
#: The work that waits on a node while its results and the next requests travel; and the shortest run that is assumed.
_AHEAD_SECONDS, _SHORTEST_SECONDS = 0.3, 0.002


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, as `RayBackend.nodes()` returns it. `running` counts this backend's runs and sandboxes.

    `isolation_class` is "unavailable" if the node gets no work; `reason` then says why.
    """

    id: str
    address: str
    isolation_class: str
    cores: int
    gpus: int
    running: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as Ray describes it."""

    id: str
    address: str
    cores: int
    gpus: int
    #: It is about to be removed: no new runs.
    is_draining: bool = False
    has_resource: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node reports when its actor has started."""

    pid: int
    version: str
    #: How many runs it carries out at a time.
    slots: int
    capabilities: BackendCapabilities


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs of its node."""

    language: str
    has_gpus: bool = False
    #: One of many: at most a few per processor, so that nodes which join get their part.
    is_batch: bool = False
    #: Of a batch: how many run at a time for each processor.
    per_core: int = 2
    #: A sandbox takes no slot: its runs wait on its node.
    is_sandbox: bool = False


class Candidate(Protocol):
    @property
    def info(self) -> NodeInfo: ...
    @property
    def facts(self) -> NodeFacts: ...

    running: int
    sandboxes: int
    #: How long a run of a batch takes there; None before the first has finished.
    batch_run_seconds: float | None


C = TypeVar("C", bound=Candidate)


def usable(nodes: Iterable[NodeInfo]) -> list[NodeInfo]:
    """Nodes that have the resource `warmcell`, or if none has it, those with processors for Ray's work."""
    known = list(nodes)
    chosen = [node for node in known if node.has_resource]
    return chosen or [node for node in known if node.cores] or known


def choose(candidates: Iterable[C], needs: Needs) -> C | None:
    """The fitting node with the lowest load that has a free slot."""
    fitting = [one for one in candidates if not one.info.is_draining and (one.info.gpus or not needs.has_gpus)]
    # A language that no node has goes to any of them, for the refusal that names it.
    speaking = [one for one in fitting if needs.language in one.facts.capabilities.supported_languages] or fitting
    free = [one for one in speaking if one.running < slots_of(one, needs)]
    return min(free, key=load, default=None)


def slots_of(one: Candidate, needs: Needs) -> int:
    if needs.is_sandbox:
        return one.running + 1
    if not needs.is_batch:
        return one.facts.slots
    return min(one.facts.slots, batch_slots(batch_places(one.info.cores, needs.per_core), one.batch_run_seconds))


def batch_places(cores: int, per_core: int) -> int:
    """How many runs of batches a node carries out at a time."""
    return per_core * max(1, cores)


def batch_slots(at_once: int, run_seconds: float | None) -> int:
    """How many runs of batches a node has: those that run, and those that wait there, so that both directions carry
    many in one call. Short runs only: with long ones, what waits on one node would be missing on another.
    """
    ahead = 0 if run_seconds is None else int(at_once * _AHEAD_SECONDS / max(run_seconds, _SHORTEST_SECONDS))
    return at_once + max(2, ahead)


def load(one: Candidate) -> float:
    return (one.running + one.sandboxes) / max(1, one.info.cores)
