"""Time that this virtual machine had no processor: no process in it has used it, or waited for it in a queue."""

from __future__ import annotations

import os

from warmcell.cage.linux import kernel_files
from warmcell.core.records import dataclass

_TICK = os.sysconf("SC_CLK_TCK")
#: All that was stolen may have been taken from a guest that had this share of what was computed: a host takes a
#: processor for long, from what computes at that moment.
_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds of one processor since its start."""

    #: In which it computed.
    busy: float
    #: In which something was to compute, and the host had it compute something else.
    stolen: float


def processor_times() -> dict[str, ProcessorTime]:
    """By the processor's name; empty where /proc/stat cannot be read."""
    try:
        lines = kernel_files.read("/proc/stat").splitlines()
    except OSError:
        return {}
    return {line.split()[0]: _parse(line) for line in lines if line.startswith("cpu") and line[3:4].isdigit()}


def _parse(line: str) -> ProcessorTime:
    user, nice, system, _, _, irq, soft_irq, stolen = (int(field) / _TICK for field in line.split()[1:9])
    return ProcessorTime(user + nice + system + irq + soft_irq, stolen)


def stolen_time(cpu: float, before: dict[str, ProcessorTime], after: dict[str, ProcessorTime]) -> float:
    """How long processes that computed for `cpu` seconds may have stood still meanwhile, for lack of a processor.

    That of the processor from which most was stolen. A guest that slept lost nothing.
    """
    lost = (_loss(cpu, before[name], after[name]) for name in before.keys() & after.keys())
    return max(lost, default=0.0)


def _loss(cpu: float, before: ProcessorTime, after: ProcessorTime) -> float:
    busy, stolen = after.busy - before.busy, after.stolen - before.stolen
    return max(0.0, stolen * min(1.0, cpu / (_SHARE * busy)) if busy > 0 else stolen)
