"""GPUs of a policy: the devices it allows, and the host files that a guest needs for them. Pure module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warmcell.core.errors import EnforcerUnavailable, InvalidRequest, PolicyViolation
from warmcell.core.records import dataclass

ALL = "all"
_MOST_DEVICES = 64
_LARGEST_NUMBER = 1 << 16

#: (host path, guest path)
Places = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Vendor:
    """The device nodes and variables of one vendor. Only NVIDIA's have been tested on real hardware."""

    name: str
    #: The path of a device node without its number, and the number of the first node.
    node: str
    first: int
    #: Nodes that every program needs, whichever devices it uses.
    shared_nodes: tuple[str, ...]
    #: They list all of the guest's devices: programs number the devices that they can open from 0.
    variables: tuple[str, ...]
    #: The tool that hints name.
    tool: str


NVIDIA = Vendor(
    "nvidia", "/dev/nvidia", 0, ("/dev/nvidiactl", "/dev/nvidia-uvm"), ("CUDA_VISIBLE_DEVICES",), "nvidia-smi"
)
AMD = Vendor("amd", "/dev/dri/renderD", 128, ("/dev/kfd",), ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "rocm-smi")
VENDORS = (NVIDIA, AMD)
_NODES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """One vendor's devices and driver on this host, as `enforcers.gpus` found them."""

    vendor: Vendor
    #: The nodes of each device, by its number: 0 is the first one.
    devices: tuple[tuple[int, Places], ...]
    shared_nodes: Places
    #: Libraries and other files of the driver that programs need, except those that every guest sees.
    files: Places = ()
    #: Directories for LD_LIBRARY_PATH: the dynamic loader does not search them by default.
    library_dirs: tuple[str, ...] = ()
    #: Nodes whose permissions do not let a guest open them.
    closed_nodes: tuple[str, ...] = ()
    #: Whether NVML can measure the device memory of a process.
    counts_memory: bool = False


@dataclass(frozen=True, slots=True)
class GpuGrant:
    """The host's nodes, files and variables that a guest gets for its devices."""

    vendor: str
    numbers: tuple[int, ...]
    nodes: Places
    files: Places
    env: Mapping[str, str]
    library_dirs: tuple[str, ...]
    counts_memory: bool

    @property
    def description(self) -> str:
        return ", ".join(target for _, target in self.nodes)

    @property
    def measurable(self) -> tuple[int, ...]:
        """The devices whose use can be measured."""
        return self.numbers if self.counts_memory else ()


def check_gpus(gpus: object) -> str | tuple[int, ...] | None:
    """Validate and normalise a policy's devices: "all", sorted numbers, or None, also for an empty list."""
    if gpus is None or gpus == ALL:
        return None if gpus is None else ALL
    if isinstance(gpus, str | bytes) or not isinstance(gpus, Iterable):
        raise InvalidRequest(f'must be "all" or a list of device numbers, not {type(gpus).__name__}', field="gpus")
    numbers = tuple(gpus)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _LARGEST_NUMBER:
            # Do not print the value: numbers of thousands of digits cannot be printed.
            reason = f"a device number is a whole number from 0 to {_LARGEST_NUMBER}"
            raise InvalidRequest(reason, field="gpus", hint="0 is the first device")
    if len(numbers) > _MOST_DEVICES:
        raise InvalidRequest(f"names more than {_MOST_DEVICES} devices", field="gpus")
    return tuple(sorted(set(numbers))) or None


def narrow_gpus(asked: object, ceiling: str | tuple[int, ...] | None) -> str | tuple[int, ...] | None:
    """Return the requested devices if `ceiling` allows all of them. "all" means all that it allows."""
    wanted = check_gpus(asked)
    if wanted is None:
        return None
    if ceiling is None:
        raise PolicyViolation("the policy allows no GPU", hint='add gpus = "all" or device numbers to the policy')
    if ALL in (wanted, ceiling):
        return ceiling if wanted == ALL else wanted
    refused = next((number for number in wanted if number not in ceiling), None)
    if refused is not None:
        allowed = ", ".join(map(str, ceiling))
        raise PolicyViolation(f"the policy does not allow GPU {refused}", hint=f"it allows {allowed}")
    return wanted


def grant_gpus(
    gpus: str | tuple[int, ...], driver: GpuDriver | None, enforcer: str, memory_mb: int | None = None
) -> GpuGrant:
    """Grant the devices, or raise an error that names the device and the remedy."""
    if driver is None or not driver.devices:
        missing = " nor ".join(vendor.shared_nodes[0] for vendor in VENDORS)
        raise EnforcerUnavailable(
            enforcer,
            f"this host has no GPU: neither {missing} was found with a device",
            hint="install the driver (`nvidia-smi` shows devices), give the container its GPUs, or leave GPUs out",
        )
    devices = dict(driver.devices)
    numbers = tuple(sorted(devices)) if isinstance(gpus, str) else gpus
    for number in numbers:
        if number not in devices:
            raise _no_such_device(number, driver)
    nodes = (*driver.shared_nodes, *(node for number in numbers for node in devices[number]))
    _refuse_closed(nodes, driver, enforcer)
    if memory_mb is not None and not driver.counts_memory:
        raise EnforcerUnavailable(
            enforcer,
            "the memory of a GPU cannot be limited without NVML (libnvidia-ml.so.1), which was not found",
            hint="install the driver's management library, or leave Limits(gpu_memory_mb=...) out",
        )
    return GpuGrant(
        vendor=driver.vendor.name,
        numbers=numbers,
        nodes=nodes,
        files=driver.files,
        env=_environment(driver, len(numbers)),
        library_dirs=driver.library_dirs,
        counts_memory=driver.counts_memory,
    )


def _no_such_device(number: int, driver: GpuDriver) -> PolicyViolation:
    node = f"{driver.vendor.node}{driver.vendor.first + number}"
    known = ", ".join(str(number) for number, _ in driver.devices)
    hint = f"this host has {known} (see `{driver.vendor.tool}`)"
    return PolicyViolation(f"GPU {number} does not exist: {node} is missing", hint=hint)


def _refuse_closed(nodes: Places, driver: GpuDriver, enforcer: str) -> None:
    closed = next((source for source, _ in nodes if source in driver.closed_nodes), None)
    if closed is not None:
        raise EnforcerUnavailable(
            enforcer,
            f"guests cannot open {closed}: permission denied",
            hint=f"chmod 0666 {closed} (NVIDIA's driver: NVreg_DeviceFileMode=0666), or join the group of that node",
        )


def _environment(driver: GpuDriver, count: int) -> dict[str, str]:
    env = dict.fromkeys(driver.vendor.variables, ",".join(map(str, range(count))))
    return {**env, "LD_LIBRARY_PATH": ":".join(driver.library_dirs)} if driver.library_dirs else env


def is_gpu_node(path: str) -> bool:
    """Whether a path belongs to a GPU."""
    return path.startswith(_NODES)
