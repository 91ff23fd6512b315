"""Reads files of the container device interface (CDI), by which a vendor describes what containers need of its devices.

They are JSON or the plain YAML that `nvidia-ctk cdi generate` writes. A file that cannot be read so is ignored: the
nodes and libraries are then found by their names.
"""

from __future__ import annotations

import os
import re

from warmcell.core.records import dataclass
from warmcell.enforcers.host_tree import HostTree
from warmcell.policy.gpu import VENDORS, Places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

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
        """Where guests see its libraries."""
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
    """At the path for containers, if the host has it too: guests see the host's /usr, in which none can be made."""
    edits = spec.get("containerEdits")
    for mount in _items(edits.get("mounts") if isinstance(edits, dict) else None):
        source = str(mount.get("hostPath", ""))
        target = str(mount.get("containerPath") or source)
        if _is_file_of_driver(target) and (os.path.isfile(tree.path(source)) or os.path.isdir(tree.path(source))):
            yield os.path.realpath(tree.path(source)), target if tree.exists(target) else source


def _is_file_of_driver(target: str) -> bool:
    """Not sockets of daemons (/run/nvidia-persistenced), which programs can do without, nor kernel file systems."""
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
    """Raises `ValueError` for everything that it does not know: anchors, tags, flow mappings, block scalars."""
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
