"""Writes an image for other tools: an OCI layout (directory or tar), or an archive for `docker load`.

Exports are reproducible: the order is fixed, times are zero, and layers are copied unchanged.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import on_error
from warmcell.images.blobs import BlobStore, encode_json, hex_of, read_chunks
from warmcell.images.decompress import compression_of, decompress
from warmcell.images.layers import LayerStore
from warmcell.images.manifests import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    Descriptor,
    diff_ids,
    make_manifest,
    own_architecture,
    parse_manifest,
)
from warmcell.images.references import parse_reference
from warmcell.workspace.new_file import create_file
from warmcell.workspace.remove import remove_directory

_SUFFIXES = {"gzip": "+gzip", "zstd": "+zstd", "none": ""}


class Target(Protocol):
    """The directory or archive that an export writes to."""

    def add(self, path: str, chunks: Iterable[bytes], size: int) -> None: ...


class Exporter:
    """Exports images of one store."""

    def __init__(self, blobs: BlobStore, layers: LayerStore) -> None:
        self._blobs, self._layers = blobs, layers

    def write_layout(self, digest: str, name: str, path: str) -> None:
        """An OCI layout: a tar file if the path ends in ".tar", else a directory."""
        with _open_tar(path) if path.endswith(".tar") else _open_directory(path) as target:
            data = self._oci_manifest(digest)
            manifest = parse_manifest(self._blobs.read_json(digest))
            index = _index(Descriptor(OCI_MANIFEST, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)), name)
            _add_bytes(target, "oci-layout", encode_json({"imageLayoutVersion": "1.0.0"}))
            _add_bytes(target, "index.json", encode_json(index))
            _add_bytes(target, _blob_path(index["manifests"][0]["digest"]), data)
            for blob in sorted({manifest.config.digest, *(layer.digest for layer in manifest.layers)}):
                with self._blobs.open(blob) as stream:
                    target.add(_blob_path(blob), read_chunks(stream), os.path.getsize(stream.name))

    def _oci_manifest(self, digest: str) -> bytes:
        """The stored manifest, so that the image keeps its digest; Docker's format is converted."""
        with self._blobs.open(digest) as stream:
            data = stream.read()
        document = self._blobs.read_json(digest)
        if document.get("mediaType", OCI_MANIFEST) == OCI_MANIFEST:
            return data
        manifest = parse_manifest(document)
        config = Descriptor(OCI_CONFIG, manifest.config.digest, manifest.config.size)
        return encode_json(make_manifest(config, [self._oci_layer(layer) for layer in manifest.layers]))

    def _oci_layer(self, layer: Descriptor) -> Descriptor:
        with self._blobs.open(layer.digest) as stream:
            return Descriptor(OCI_LAYER + _SUFFIXES[compression_of(stream)], layer.digest, layer.size)

    def write_docker(self, digest: str, name: str, path: str) -> None:
        """The format of `docker save`: one tar file with uncompressed layers."""
        manifest = parse_manifest(self._blobs.read_json(digest))
        layers = diff_ids(self._blobs.read_json(manifest.config.digest), len(manifest.layers))
        names = [f"{hex_of(diff_id)}.tar" for diff_id in layers]
        config = f"{hex_of(manifest.config.digest)}.json"
        tags = [] if "@" in name else [name]
        with _open_tar(path) as target:
            _add_bytes(target, "manifest.json", encode_json([{"Config": config, "RepoTags": tags, "Layers": names}]))
            with self._blobs.open(manifest.config.digest) as stream:
                _add_bytes(target, config, stream.read())
            for diff_id, layer in dict(zip(layers, manifest.layers, strict=True)).items():
                with self._blobs.open(layer.digest) as stream:
                    target.add(f"{hex_of(diff_id)}.tar", decompress(stream), self._size(diff_id, layer))

    def _size(self, diff_id: str, layer: Descriptor) -> int:
        """The uncompressed size, which a tar header states. A layer that was merged with others must be read for it."""
        if self._layers.has(diff_id):
            return self._layers.size(diff_id)
        with self._blobs.open(layer.digest) as stream:
            return sum(map(len, decompress(stream)))


def _index(manifest: Descriptor, name: str) -> dict[str, Any]:
    reference = parse_reference(name)
    annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": reference.tag}
    platform = {"architecture": own_architecture(), "os": "linux"}
    entry = manifest.to_json() | {"annotations": annotations, "platform": platform}
    return {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}


def _blob_path(digest: str) -> str:
    return f"blobs/sha256/{hex_of(digest)}"


def _add_bytes(target: Target, path: str, data: bytes) -> None:
    target.add(path, [data], len(data))


class _Directory:
    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, path: str, chunks: Iterable[bytes], size: int) -> None:
        place = os.path.join(self._path, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "xb") as file:
            file.writelines(chunks)


class _Tar:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._directories: set[str] = set()

    def add(self, path: str, chunks: Iterable[bytes], size: int) -> None:
        self._add_directories(os.path.dirname(path))
        entry = tarfile.TarInfo(path)
        entry.size, entry.mode = size, 0o644
        self._archive.addfile(entry, _ChunkReader(iter(chunks)))

    def _add_directories(self, path: str) -> None:
        """Some extractors create missing parents as root's, which fails for an ordinary user: add them as entries."""
        if path and path not in self._directories:
            self._add_directories(os.path.dirname(path))
            self._directories.add(path)
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            self._archive.addfile(entry)


class _ChunkReader(io.RawIOBase):
    """A file object over chunks, for `tarfile`."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size and (chunk := next(self._chunks, b"")):
            self._rest += chunk
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


@contextmanager
def _open_directory(path: str) -> Iterator[Target]:
    """A new directory, removed again if the export fails."""
    try:
        os.mkdir(path)
    except FileExistsError:
        raise _path_exists(path) from None
    with on_error(lambda: remove_directory(path)):
        yield _Directory(path)


@contextmanager
def _open_tar(path: str) -> Iterator[Target]:
    """A new archive, which has its name when it is complete."""
    if os.path.lexists(path):
        raise _path_exists(path)
    try:
        with create_file(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            yield _Tar(archive)
    except FileExistsError:
        raise _path_exists(path) from None


def _path_exists(path: str) -> InvalidRequest:
    return InvalidRequest(f"{path!r} exists", field="path", hint="remove it, or export to another path")
