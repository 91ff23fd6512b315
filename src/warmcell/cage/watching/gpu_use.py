"""What one tree of processes uses of GPUs."""

from __future__ import annotations

from ..linux.nvml import Nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Sequence

    #: Whether a process, by its pid in our own namespace, is one of the tree's.
    IsOfTree = Callable[[int], bool]

#: In microseconds. Where the device was idle there are no samples, and the next one does not cover that time.
_LONGEST_SAMPLE = 1_000_000
#: One for all cells of a watcher.
_library: List[Nvml] = []


def load() -> Nvml:
    if not _library:
        _library.append(Nvml())
    return _library[0]


class GpuUse:
    """The driver reports memory by process. Where it numbers them by another pid namespace (drivers before 2021), what
    the whole device gained since the start counts as the tree's: an upper bound, and exact if it is alone.
    """

    def __init__(
        self, nvml: Nvml, devices: Sequence[int], is_of_tree: IsOfTree, has_opened: Callable[[], bool]
    ) -> None:
        self._nvml = nvml
        self._is_of_tree = is_of_tree
        self._has_opened = has_opened
        self._before = {device: nvml.memory_in_use(device) for device in devices}
        #: When the newest sample of each device was taken.
        self._sampled: Dict[int, int] = dict.fromkeys(devices, 0)
        self._is_known = False
        self.peak = 0
        #: For how long kernels of the tree executed. -1: the driver does not report it.
        self.seconds = 0.0

    def look(self) -> int:
        """The most bytes on one device now."""
        used = max((self._memory(device) for device in self._before), default=0)
        self.peak = max(self.peak, used)
        if self.seconds >= 0:
            self._add_time()
        return used

    def _memory(self, device: int) -> int:
        own = [used for pid, used in self._nvml.processes(device).items() if self._is_of_tree(pid)]
        self._is_known = self._is_known or bool(own)
        if own or self._is_known or not self._has_opened():
            return sum(own)
        return max(0, self._nvml.memory_in_use(device) - self._before[device])

    def _add_time(self) -> None:
        """Samples of one moment, one per process, are shares of the time since the moment before."""
        try:
            for device, before in self._sampled.items():
                moment = before
                for sample in self._nvml.samples(device, before):
                    if sample.time > moment:
                        before, moment = moment, sample.time
                    if before and self._is_of_tree(sample.pid):
                        self.seconds += sample.share * min(moment - before, _LONGEST_SAMPLE) / 1e6
                self._sampled[device] = moment
        except OSError:  # not every device and driver has samples
            self.seconds = -1.0
