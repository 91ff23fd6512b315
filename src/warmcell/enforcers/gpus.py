"""Finds this host's GPUs: the device nodes, and the driver libraries that programs load. Decides nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from warmcell.core.errors import SandboxError
from warmcell.core.records import dataclass
from warmcell.enforcers.host import find_program, query_tool
from warmcell.policy.gpu import AMD, NVIDIA, VENDORS, GpuDriver, Places, Vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@cache
def _loader_cache() -> tuple[str, ...]:
    """The libraries in the dynamic loader's cache."""
    ldconfig = find_program("ldconfig", os.pathsep.join((os.environ.get("PATH", ""), "/sbin", "/usr/sbin")))
    try:
        lines = query_tool([ldconfig, "-p"]).splitlines() if ldconfig else []
    except SandboxError:  # musl's ldconfig fails; the usual directories are then searched
        lines = []
    return tuple(line.partition(" => ")[2].strip() for line in lines if " => /" in line)


def _is_open_to_guests(node: str) -> bool:
    """Whether a guest could open the node. Root's guests have an id that owns nothing, others the caller's."""
    if os.geteuid() == 0:
        return os.stat(node).st_mode & 0o006 == 0o006
    return os.access(node, os.R_OK | os.W_OK)


@dataclass(frozen=True, slots=True)
class HostTree:
    """The host's files as the search for GPUs reads them. Tests use a fake below another `root`."""

    root: str = "/"
    loader_cache: Callable[[], Iterable[str]] = _loader_cache
    #: Whether a guest could open the node at a path.
    is_open: Callable[[str], bool] = _is_open_to_guests

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(directory)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))


#: Where the driver's libraries are if they are not in the loader's cache: containers, WSL, NixOS, Fedora.
_LIBRARY_DIRS = tuple(
    """
    /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib /run/opengl-driver/lib /usr/lib64/nvidia
    /usr/lib/nvidia
    """.split()
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
    """The driver of the first vendor with devices. Container device interface (CDI) files take precedence."""
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
    """The devices by their nodes: /dev/nvidia0 is device 0, /dev/dri/renderD128 is AMD's device 0."""
    directory, prefix = os.path.split(vendor.node)
    matches = (re.fullmatch(re.escape(prefix) + r"(\d+)", name) for name in tree.list(directory))
    numbers = sorted(int(match[1]) for match in matches if match)
    found = ((number - vendor.first, f"{vendor.node}{number}") for number in numbers)
    return tuple((number, ((tree.path(node), node),)) for number, node in found)


def _find_libraries(vendor: Vendor, tree: HostTree, also: tuple[str, ...]) -> tuple[Places, tuple[str, ...]]:
    """The driver's libraries, and those of their directories that the loader does not search by default."""
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
    """Mounts a link's target at the link's path and at its own, for programs that resolve the link."""
    real = os.path.realpath(tree.path(path))
    yield real, path
    if tree.root == "/" and real != path:
        yield real, real


# Reads container device interface (CDI) files, in which a vendor describes what containers need to use its devices.
# They are JSON or the simple YAML that `nvidia-ctk cdi generate` writes. Other files are ignored; nodes and libraries
# are then found by name.

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_KINDS = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_NODES = {vendor.name: vendor.node for vendor in VENDORS}
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """The devices by number, and the files that all of them need."""

    devices: tuple[tuple[int, Places], ...]
    mounts: Places

    @property
    def library_dirs(self) -> tuple[str, ...]:
        """The directories in which guests see the libraries."""
        return tuple(dict.fromkeys(os.path.dirname(target) for _, target in self.mounts if ".so" in target))


def read_specs(vendor: str, tree: HostTree) -> DeviceSpec | None:
    """The first file that describes existing devices of the vendor, or None."""
    for directory in DIRECTORIES:
        for name in tree.list(directory):
            spec = _read_file(tree.path(f"{directory}/{name}"))
            if isinstance(spec, dict) and spec.get("kind") == _KINDS.get(vendor):
                found = _describe(spec, _NODES[vendor], tree)
                if found.devices:
                    return found
    return None


def _read_file(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            return None
        if path.endswith(".json"):
            import json

            return json.loads(text)
        return parse_yaml(text) if path.endswith((".yaml", ".yml")) else None
    except (OSError, ValueError, RecursionError):
        return None


def _describe(spec: dict[str, Any], node: str, tree: HostTree) -> DeviceSpec:
    devices = []
    for device in _items(spec.get("devices")):
        nodes = tuple(place for place in _nodes(device, tree) if re.fullmatch(re.escape(node) + r"\d+", place[1]))
        if str(device.get("name", "")).isdigit() and nodes:
            devices.append((int(device["name"]), nodes))
    return DeviceSpec(tuple(sorted(devices)), tuple(_mounts(spec, tree)))


def _mounts(spec: dict[str, Any], tree: HostTree) -> Iterator[tuple[str, str]]:
    """Mounts at the path for containers if it exists on the host: guests see the host's /usr, which is read-only."""
    edits = spec.get("containerEdits")
    for mount in _items(edits.get("mounts") if isinstance(edits, dict) else None):
        source = str(mount.get("hostPath", ""))
        target = str(mount.get("containerPath") or source)
        if _is_file_of_driver(target) and (os.path.isfile(tree.path(source)) or os.path.isdir(tree.path(source))):
            yield os.path.realpath(tree.path(source)), target if tree.exists(target) else source


def _is_file_of_driver(target: str) -> bool:
    """False for sockets of daemons (/run/nvidia-persistenced), which programs do not need, and kernel file systems."""
    return os.path.isabs(target) and not target.startswith(("/run/", "/var/run/", "/proc/", "/dev/", "/sys/", "/tmp/"))


def _nodes(device: dict[str, Any], tree: HostTree) -> Iterator[tuple[str, str]]:
    edits = device.get("containerEdits")
    for node in _items(edits.get("deviceNodes") if isinstance(edits, dict) else None):
        path = str(node.get("path", ""))
        source = str(node.get("hostPath") or path)
        if path.startswith("/dev/") and tree.exists(source):
            yield tree.path(source), path


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# ---- the part of YAML that such files use: block mappings and lists of plain or quoted scalars ----

_PAIR = re.compile(r"(?P<key>[^\s'\"#{}\[\]&*!|>%@`-][^:#]*?|'[^']*'|\"[^\"]*\")\s*:(?:\s+(?P<value>.*))?$")
_DEEPEST = 32


def parse_yaml(text: str) -> Any:
    """Raises `ValueError` for unsupported syntax: anchors, tags, flow mappings, block scalars."""
    lines = [(len(line) - len(line.lstrip(" ")), line.strip()) for line in text.splitlines()]
    lines = [line for line in lines if line[1] and not line[1].startswith("#") and line[1] != "---"]
    value, rest = _block(lines, 0)
    if rest:
        raise ValueError(f"cannot read {rest[0][1]!r}")
    return value


_Lines = list[tuple[int, str]]


def _block(lines: _Lines, depth: int) -> tuple[Any, _Lines]:
    if not lines or depth > _DEEPEST:
        raise ValueError("empty, or nested too deeply")
    indent = lines[0][0]
    is_list = lines[0][1] == "-" or lines[0][1].startswith("- ")
    found: Any = [] if is_list else {}
    while lines and lines[0][0] == indent and (lines[0][1] == "-" or lines[0][1].startswith("- ")) == is_list:
        lines = _item(found, lines, depth) if is_list else _pair(found, lines, depth)
    return found, lines


def _item(found: list[Any], lines: _Lines, depth: int) -> _Lines:
    (indent, text), *rest = lines
    content = text[1:].lstrip()
    if _PAIR.match(content):  # a mapping that begins beside the dash
        value, rest = _block([(indent + len(text) - len(content), content), *rest], depth + 1)
    elif content:
        value = _scalar(content)
    else:
        value, rest = _block(rest, depth + 1)
    found.append(value)
    return rest


def _pair(found: dict[str, Any], lines: _Lines, depth: int) -> _Lines:
    (indent, text), *rest = lines
    match = _PAIR.match(text)
    if match is None:
        raise ValueError(f"cannot read {text!r}")
    key, value = match["key"].strip("'\""), match["value"]
    if value:
        found[key] = _scalar(value)
        return rest
    is_list_below = bool(rest) and rest[0][0] == indent and rest[0][1].startswith("-")
    if rest and (rest[0][0] > indent or is_list_below):
        found[key], rest = _block(rest, depth + 1)
    else:
        found[key] = None
    return rest


def _scalar(text: str) -> Any:
    if text[0] in "'\"":
        if len(text) < 2 or text[-1] != text[0] or "\\" in text:
            raise ValueError(f"cannot read {text!r}")
        return text[1:-1]
    if text in ("[]", "{}"):
        return [] if text == "[]" else {}
    if text[0] in "{[&*!|>%@`":
        raise ValueError(f"cannot read {text!r}")
    return text.partition(" #")[0].rstrip()
