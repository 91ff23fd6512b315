"""Manifests and indexes of the OCI image format and of Docker's (version 2, schema 2). Pure."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from warmcell.core.errors import ImageInvalid
from warmcell.core.records import dataclass, field
from warmcell.images.blobs import hex_of
from warmcell.images.limits import MAX_JSON_BYTES, MAX_LAYERS

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFESTS, INDEXES = (OCI_MANIFEST, DOCKER_MANIFEST), (OCI_INDEX, DOCKER_INDEX)
_CONFIGS = (OCI_CONFIG, DOCKER_CONFIG)
_LAYERS = ("application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs.")
#: Go's names of the architectures that Warmcell runs on.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A reference to a blob: type, digest and size."""

    media_type: str
    digest: str
    size: int
    platform: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return f"{self.platform.get('os', '?')}/{self.platform.get('architecture', '?')}"

    def to_json(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image: its configuration and its layers, the lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


def own_architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def parse_descriptor(document: Any) -> Descriptor:
    fields = require_object(document, "a descriptor")
    size = fields.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ImageInvalid("a descriptor of the image has no valid size")
    media_type, digest = fields.get("mediaType"), fields.get("digest")
    if not isinstance(media_type, str) or not isinstance(digest, str):
        raise ImageInvalid("a descriptor of the image has no media type or digest")
    hex_of(digest)
    inner = [require_object(fields.get(key) or {}, key) for key in ("platform", "annotations")]
    return Descriptor(media_type, digest, size, *inner)


def parse_manifest(document: Any) -> Manifest:
    fields = require_object(document, "the manifest")
    if fields.get("schemaVersion") != 2:
        raise ImageInvalid("the manifest's schema version is not 2", hint="save the image again with a newer tool")
    config = parse_descriptor(fields.get("config"))
    if config.media_type not in _CONFIGS:
        raise ImageInvalid(f"the manifest does not describe an image: its configuration is {config.media_type!r}")
    layers = tuple(parse_descriptor(item) for item in require_list(fields.get("layers"), "the list of layers"))
    check_layer_count(layers)
    for layer in layers:
        if not layer.media_type.startswith(_LAYERS):
            raise ImageInvalid(f"a layer has the unknown media type {layer.media_type[:100]!r}")
    check_json_size(config)
    return Manifest(config, layers)


def parse_index(document: Any) -> tuple[Descriptor, ...]:
    fields = require_object(document, "the index")
    found = tuple(parse_descriptor(item) for item in require_list(fields.get("manifests"), "the index"))
    for descriptor in found:
        check_json_size(descriptor)
    return found


def choose(descriptors: Sequence[Descriptor], architecture: str) -> Descriptor:
    """Choose the manifest for this machine. Attestations, whose platform is "unknown", never match."""
    usable = [item for item in descriptors if item.media_type in (*MANIFESTS, *INDEXES)]
    fitting = [item for item in usable if item.platform and item.architecture == f"linux/{architecture}"]
    if fitting:
        return fitting[0]
    unnamed = [item for item in usable if not item.platform]
    if len(unnamed) == 1:
        return unnamed[0]
    if unnamed:
        raise ImageInvalid("the index has several images", hint="give the name of one of them")
    known = ", ".join(sorted({item.architecture for item in usable})) or "none"
    raise ImageInvalid(f"the image is not for linux/{architecture} (it is for {known})")


def diff_ids(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """The digests of the uncompressed layers, one for each layer of the manifest."""
    rootfs = require_object(config.get("rootfs"), "the rootfs of the configuration")
    found = require_list(rootfs.get("diff_ids"), "the list of diff_ids")
    for digest in found:
        hex_of(digest)
    if len(found) != count:
        raise ImageInvalid(f"the manifest has {count} layers, and the configuration {len(found)}")
    return tuple(found)


def check_platform(config: Mapping[str, Any]) -> str:
    """Return the configuration's architecture; `ImageInvalid` if this machine cannot run it."""
    system, architecture = config.get("os") or "linux", config.get("architecture") or own_architecture()
    if (system, architecture) != ("linux", own_architecture()):
        raise ImageInvalid(f"the image is for {system}/{architecture}; this machine is linux/{own_architecture()}")
    return own_architecture()


def make_manifest(config: Descriptor, layers: Sequence[Descriptor]) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": config.to_json(),
        "layers": [layer.to_json() for layer in layers],
    }


def check_layer_count(layers: Sequence[object]) -> None:
    if len(layers) > MAX_LAYERS:
        raise ImageInvalid(f"the image has {len(layers)} layers, more than {MAX_LAYERS}")


def check_json_size(descriptor: Descriptor) -> None:
    if descriptor.size > MAX_JSON_BYTES:
        raise ImageInvalid(f"{descriptor.digest} is larger than {MAX_JSON_BYTES} bytes")


def require_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ImageInvalid(f"{what} is not a JSON object")
    return value


def require_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ImageInvalid(f"{what} is not a JSON array")
    return value
