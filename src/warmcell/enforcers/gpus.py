"""Finds this host's GPUs: device nodes, and the driver's libraries that programs load. Decides nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import partial

from warmcell.enforcers.cdi import read_specs
from warmcell.enforcers.host_tree import HostTree
from warmcell.policy.gpu import AMD, NVIDIA, VENDORS, GpuDriver, Places, Vendor

#: Where the driver's libraries lie if the loader does not find them by itself: containers, WSL, NixOS, Fedora.
_LIBRARY_DIRS = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib64/nvidia",
    "/usr/lib/nvidia",
)
_LIBRARIES = {
    NVIDIA.name: ("libcuda.so", "libcudadebugger.so", "libnvidia-", "libnvcuvid.so"),
    AMD.name: ("libhsa-runtime64.so", "libamdhip64.so", "libdrm_amdgpu.so", "libdrm.so"),
}
#: The library without which no program can use the devices.
_MAIN_LIBRARY = {NVIDIA.name: "libcuda.so.1", AMD.name: "libhsa-runtime64.so.1"}
#: Directories and files besides libraries: AMD's runtime reads its topology from /sys.
_OTHER_FILES = {NVIDIA.name: (), AMD.name: ("/opt/rocm", "/sys/devices/virtual/kfd", "/sys/class/kfd")}
_MANAGEMENT_LIBRARY = "libnvidia-ml.so.1"


def find_driver(tree: HostTree | None = None) -> GpuDriver | None:
    """The first vendor's driver that has devices. Files of the container device interface decide, if there are any."""
    tree = tree or HostTree()
    for vendor in VENDORS:
        if all(tree.exists(node) for node in vendor.shared_nodes[:1]):
            driver = _find_driver(vendor, tree)
            if driver.devices:
                return driver
    return None


def _find_driver(vendor: Vendor, tree: HostTree) -> GpuDriver:
    described = read_specs(vendor.name, tree)
    devices = described.devices if described else _scan_devices(vendor, tree)
    files, library_dirs = _find_libraries(vendor, tree, described.library_dirs if described else ())
    places = dict.fromkeys((*(described.mounts if described else ()), *files))
    shared = tuple((tree.path(node), node) for node in vendor.shared_nodes if tree.exists(node))
    nodes = [source for source, _ in shared] + [source for _, own in devices for source, _ in own]
    return GpuDriver(
        vendor=vendor,
        devices=devices,
        shared_nodes=shared,
        files=tuple(places),
        library_dirs=library_dirs,
        closed_nodes=tuple(node for node in nodes if not tree.is_open(node)),
        counts_memory=any(os.path.basename(target) == _MANAGEMENT_LIBRARY for _, target in places),
    )


def _scan_devices(vendor: Vendor, tree: HostTree) -> tuple[tuple[int, Places], ...]:
    """By the nodes: /dev/nvidia0 is device 0, /dev/dri/renderD128 is AMD's device 0."""
    directory, prefix = os.path.split(vendor.node)
    matches = (re.fullmatch(re.escape(prefix) + r"(\d+)", name) for name in tree.list(directory))
    numbers = sorted(int(match[1]) for match in matches if match)
    found = ((number - vendor.first, f"{vendor.node}{number}") for number in numbers)
    return tuple((number, ((tree.path(node), node),)) for number, node in found)


def _find_libraries(vendor: Vendor, tree: HostTree, also: tuple[str, ...]) -> tuple[Places, tuple[str, ...]]:
    """The driver's libraries, and the directories that the loader does not search by itself."""
    is_ours = partial(_is_library, _LIBRARIES[vendor.name])
    known = [path for path in tree.loader_cache() if is_ours(path) and tree.exists(path)]
    main = _MAIN_LIBRARY[vendor.name]
    beside: list[str] = []
    directories: tuple[str, ...] = ()
    if not any(os.path.basename(path) == main for path in known):
        directories = tuple(place for place in (*also, *_search_path()) if tree.exists(os.path.join(place, main)))[:1]
        beside = [os.path.join(place, name) for place in directories for name in tree.list(place) if is_ours(name)]
    wanted = [*known, *beside, *(path for path in _OTHER_FILES[vendor.name] if tree.exists(path))]
    return tuple(place for path in wanted for place in _places_of(path, tree)), directories


def _search_path() -> list[str]:
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [*(path for path in named if os.path.isabs(path)), *_LIBRARY_DIRS]


def _is_library(prefixes: tuple[str, ...], path: str) -> bool:
    return os.path.basename(path).startswith(prefixes)


def _places_of(path: str, tree: HostTree) -> Iterable[tuple[str, str]]:
    """A link is shown as what it leads to; a program that resolves it finds that where it is on the host too."""
    real = os.path.realpath(tree.path(path))
    yield real, path
    if tree.root == "/" and real != path:
        yield real, real
