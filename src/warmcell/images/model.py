"""Image and ImageConfig: the public description of an image, parsed from its JSON. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from warmcell.core.errors import ImageInvalid, InvalidRequest
from warmcell.core.records import dataclass, field

_FRACTION = re.compile(r"\.\d+")


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The image's defaults for running it. `user` is "", "name", "uid", "name:group" or "uid:gid"."""

    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    exposed_ports: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    healthcheck: dict[str, Any] | None = None
    stop_signal: str | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image in the store.

    `digest` is that of its manifest, `size` the bytes of its uncompressed layers. `layer_paths` are directories to
    mount read-only, the lowest first; hold `ImageStore.lease(image)` while they are in use.
    """

    name: str
    digest: str
    size: int
    created: datetime | None
    config: ImageConfig
    layer_paths: tuple[str, ...] = field(default=(), repr=False)
    architecture: str = ""


def parse_config(document: Mapping[str, Any]) -> ImageConfig:
    """Parse the `config` object of an image configuration. A null field counts as absent, as in Docker's images."""
    env = [text.partition("=") for text in _texts(document, "Env")]
    _object(document, "Volumes")  # builds add to it
    return ImageConfig(
        env={name: value for name, _, value in env if name},
        workdir=posixpath.normpath("/" + _text(document, "WorkingDir").lstrip("/")),
        user=_text(document, "User"),
        entrypoint=_texts(document, "Entrypoint"),
        cmd=_texts(document, "Cmd"),
        labels=_labels(document),
        exposed_ports=tuple(sorted(_object(document, "ExposedPorts"))),
        shell=_texts(document, "Shell"),
        healthcheck=_object(document, "Healthcheck") or None,
        stop_signal=_text(document, "StopSignal") or None,
    )


def config_document(config: ImageConfig) -> dict[str, Any]:
    """The inverse of `parse_config`."""
    fields: dict[str, Any] = {
        "Env": [f"{name}={value}" for name, value in config.env.items()],
        "WorkingDir": "" if config.workdir == "/" else config.workdir,
        "User": config.user,
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.cmd),
        "Labels": dict(config.labels),
        "ExposedPorts": {port: {} for port in config.exposed_ports},
        "Shell": list(config.shell),
        "Healthcheck": config.healthcheck,
        "StopSignal": config.stop_signal,
    }
    return {key: value for key, value in fields.items() if value}


def parse_time(text: object) -> datetime | None:
    """An RFC 3339 timestamp. None if it is missing or malformed: it is for display only."""
    if not isinstance(text, str):
        return None
    try:  # Go writes nanoseconds, which Python does not read
        return datetime.fromisoformat(_FRACTION.sub("", text, count=1))
    except ValueError:
        return None


def parse_created(text: object) -> datetime | None:
    """An image's creation time. Without a zone it is UTC: some local times before the year 2 have no Unix time."""
    found = parse_time(text)
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)


def store_of(image: Image) -> str:
    """The directory of an image's store; layers are STORE/layers/ID/tree."""
    if not image.layer_paths:
        raise InvalidRequest(f"the image {image.name!r} has no layers", field="image", hint="give it at least one file")
    return posixpath.normpath(posixpath.join(image.layer_paths[0], "../../.."))


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key) or ""
    if not isinstance(value, str) or "\0" in value:
        raise _wrong(key, "a string")
    return value


def _texts(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = document.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise _wrong(key, "a list of strings")
    return tuple(value)


def _object(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key) or {}
    if not isinstance(value, dict):
        raise _wrong(key, "an object")
    return value


def _labels(document: Mapping[str, Any]) -> dict[str, str]:
    labels = _object(document, "Labels")
    if not all(isinstance(value, str) for value in labels.values()):
        raise _wrong("Labels", "an object of strings")
    return labels


def _wrong(key: str, expected: str) -> ImageInvalid:
    return ImageInvalid(f"the image's configuration is malformed: {key} is not {expected}")
