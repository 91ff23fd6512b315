"""Typed fields of JSON objects that a client sent. A wrong type is refused, and the field named. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from warmcell.interfaces.docker.messages import DockerError


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
    return {str(key): str(value) for key, value in object_field(document, "Labels").items()}


def whole_field(document: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        raise DockerError(400, f"{name}: not a whole number")
    return value
