"""Measures one process tree's use of GPUs."""

from __future__ import annotations

import ctypes
import errno

from ..fast_imports import partial
from ..records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Sequence

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
    """The use of one tree. The driver reports memory by process. Drivers before 2021 use pids of another namespace:
    then the growth of the whole device since the start counts, which is an upper bound.
    """

    def __init__(
        self, nvml: Nvml, devices: Sequence[int], is_of_tree: IsOfTree, has_opened: Callable[[], bool]
    ) -> None:
        self._nvml, self._is_of_tree, self._has_opened = nvml, is_of_tree, has_opened
        self._before = {device: nvml.memory_in_use(device) for device in devices}
        #: When the newest sample of each device was taken.
        self._sampled: Dict[int, int] = dict.fromkeys(devices, 0)
        self._is_known = False
        self.peak = 0
        #: How long kernels of the tree executed. -1: the driver does not report it.
        self.seconds = 0.0

    def look(self) -> int:
        """The largest current use of one device, in bytes."""
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
        """Samples with the same time, one per process, are shares of the interval since the previous time."""
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


# NVML, NVIDIA's management library, loaded only by the watcher.

#: In the loader's search path; then in the usual directories of containers.
_NAMES = ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
_SUCCESS, _NOT_FOUND, _TOO_SMALL = 0, 6, 7
_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF
_MOST_PROCESSES = 1 << 16


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, versions 2 and 3."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _UtilizationSample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t: percentages since the sample before."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("time", ctypes.c_ulonglong),
        ("processors", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    ]


class _MemoryInfo(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Sample(NamedTuple):
    """The share of the device's time that one process used, from 0 to 1, until `time` (microseconds)."""

    pid: int
    time: int
    share: float


class Nvml:
    """NVML's functions. Raises `OSError` if the library or the driver is missing."""

    def __init__(self) -> None:
        self._library = _load()
        self._check("nvmlInit_v2")
        self._devices = self._find_devices()

    def _find_devices(self) -> Dict[int, ctypes.c_void_p]:
        """Device handles by the number of their node, which may differ from NVML's own index."""
        count = ctypes.c_uint()
        self._check("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = {}
        for index in range(count.value):
            device, number = ctypes.c_void_p(), ctypes.c_uint()
            # Skip devices whose nodes this process cannot open.
            if self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device)) == _SUCCESS:
                self._check("nvmlDeviceGetMinorNumber", device, ctypes.byref(number))
                found[number.value] = device
        return found

    def processes(self, number: int) -> Dict[int, int]:
        """Bytes on the device by pid, in this process's pid namespace."""
        found: Dict[int, int] = {}
        for kind in ("Compute", "Graphics"):
            for info in self._list_processes(f"nvmlDeviceGet{kind}RunningProcesses", number):
                used = 0 if info.used == _NOT_AVAILABLE else info.used
                found[info.pid] = max(found.get(info.pid, 0), used)
        return found

    def _list_processes(self, function: str, number: int) -> List[_ProcessInfo]:
        name = function + ("_v3" if hasattr(self._library, function + "_v3") else "_v2")
        ask = partial(self._call, name, self._device(number))
        return _fill(_ProcessInfo, lambda items, count: ask(count, items))

    def samples(self, number: int, since: int) -> List[Sample]:
        """The utilization of each process since that time, in order; empty if the driver has none."""
        ask = partial(self._call, "nvmlDeviceGetProcessUtilization", self._device(number))
        found = _fill(_UtilizationSample, lambda items, count: ask(items, count, ctypes.c_ulonglong(since)))
        samples = [Sample(item.pid, item.time, min(item.processors, 100) / 100) for item in found if item.time > since]
        return sorted(samples, key=lambda sample: sample.time)

    def memory_in_use(self, number: int) -> int:
        """The bytes in use on the whole device."""
        info = _MemoryInfo()
        self._check("nvmlDeviceGetMemoryInfo", self._device(number), ctypes.byref(info))
        return int(info.used)

    def _device(self, number: int) -> ctypes.c_void_p:
        if number not in self._devices:
            raise OSError(errno.ENODEV, f"NVML does not show GPU {number}")
        return self._devices[number]

    def _check(self, function: str, *arguments: Any) -> None:
        result = self._call(function, *arguments)
        if result != _SUCCESS:
            raise OSError(errno.EIO, f"{function}: {result}")

    def _call(self, function: str, *arguments: Any) -> int:
        try:
            return int(getattr(self._library, function)(*arguments))
        except AttributeError:  # an older driver
            raise OSError(errno.ENOSYS, function) from None


def _fill(kind: Any, ask: Callable[[Any, Any], int]) -> List[Any]:
    """Let `ask` fill an array. If it is too small, `ask` returns an error and the required size."""
    size = 16
    while size <= _MOST_PROCESSES:
        count, items = ctypes.c_uint(size), (kind * size)()
        result = ask(items, ctypes.byref(count))
        if result == _SUCCESS:
            return list(items[: count.value])
        if result == _NOT_FOUND:
            return []
        if result != _TOO_SMALL:
            raise OSError(errno.EIO, f"NVML: {result}")
        size = max(2 * size, count.value)
    raise OSError(errno.E2BIG, "NVML")


def _load() -> ctypes.CDLL:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(errno.ENOENT, _NAMES[0])
