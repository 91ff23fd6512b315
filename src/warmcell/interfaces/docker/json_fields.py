"""Typed fields of JSON objects that a client sent. A wrong type is refused, and the field named. Pure."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

from warmcell.interfaces.docker.messages import DockerError

#: The most memory for the labels of one object. Tools keep whole configurations in them.
MAX_LABEL_BYTES = 256 << 10
#: The most memory for what a client sends for one container or `exec`. The kernel passes 2 MiB to a program.
MAX_DOCUMENT_BYTES = 4 << 20


def memory_of(document: object, most: int = MAX_DOCUMENT_BYTES) -> int:
    """How many bytes a JSON value takes in memory. It stops counting when there are more than `most`."""
    total, waiting = 0, [document]
    while waiting and total <= most:
        value = waiting.pop()
        total += sys.getsizeof(value)
        if isinstance(value, dict):
            waiting += value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return total


def check_size(document: Mapping[str, Any], what: str) -> int:
    """The bytes that the server keeps for this object."""
    size = memory_of(document)
    if size > MAX_DOCUMENT_BYTES:
        reason = f"takes more than {MAX_DOCUMENT_BYTES >> 20} MiB of memory"
        raise DockerError(400, f"the description of {what} {reason}; copy large data into the container as files")
    return size


def object_field(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name) or {}
    if not isinstance(value, dict):
        raise DockerError(400, f"{name}: not an object")
    return value


def text_field(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise DockerError(400, f"{name}: not a string")
    return value


def texts_field(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = document.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise DockerError(400, f"{name}: not a list of strings")
    return tuple(value)


def objects_field(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = document.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DockerError(400, f"{name}: not a list of objects")
    return value


def refuse_unknown(document: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Whatever an option means, leaving it out in silence would give a client something else than it asked for."""
    for name, value in document.items():
        if value and name not in known:
            raise DockerError(400, f"{what}.{name[:80]} is not supported: unknown option")


def labels_field(document: Mapping[str, Any]) -> dict[str, str]:
    labels = object_field(document, "Labels")
    if memory_of(labels, MAX_LABEL_BYTES) > MAX_LABEL_BYTES:
        raise DockerError(400, f"Labels: take more than {MAX_LABEL_BYTES >> 10} KiB of memory")
    if not all(isinstance(value, str) for value in labels.values()):
        raise DockerError(400, "Labels: the values are not strings")
    return labels


def whole_field(document: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        raise DockerError(400, f"{name}: not a whole number")
    return value
