"""Reads images that other tools wrote: OCI layouts, `docker save` archives, root file systems."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import IO, Any

from warmcell.core.errors import ImageInvalid, InvalidRequest
from warmcell.core.records import dataclass
from warmcell.images.archives import DirectoryFiles, FileSet, TarFiles, open_archive, read_json_file
from warmcell.images.blobs import BlobStore, hex_of, read_chunks
from warmcell.images.decompress import compression_of, decompress
from warmcell.images.limits import MAX_INDEX_DEPTH, Budget, ImageLimits
from warmcell.images.manifests import (
    INDEXES,
    MANIFESTS,
    OCI_CONFIG,
    OCI_LAYER,
    Descriptor,
    check_layer_count,
    choose,
    make_manifest,
    own_architecture,
    parse_index,
    parse_manifest,
    require_list,
    require_object,
)
from warmcell.images.progress import OnProgress, report_chunks
from warmcell.images.tree_tar import write_tree

_REF_NAME, _CONTAINERD_NAME = "org.opencontainers.image.ref.name", "io.containerd.image.name"


@dataclass(frozen=True, slots=True)
class Source:
    """An image whose blobs are in the store: the digest of its manifest, and the name that it came with."""

    manifest: str
    name: str | None


class SourceReader:
    """Detects the format of a path and reads it. One for each import: its budget bounds what is copied."""

    def __init__(self, blobs: BlobStore, limits: ImageLimits, on_progress: OnProgress | None) -> None:
        self._blobs = blobs
        self._limits = limits
        self._copied = Budget(limits)
        self._on_progress = on_progress

    def read(self, path: str, name: str | None) -> Source:
        with ExitStack() as cleanup:
            if not os.path.isdir(path):
                return self._read_archive(cleanup.enter_context(open_archive(path)), path, name)
            files = DirectoryFiles(path)
            cleanup.callback(files.close)
            return self._read_files(files, name) if _is_image(files) else self._read_root_directory(path)

    def _read_archive(self, stream: IO[bytes], path: str, name: str | None) -> Source:
        if compression_of(stream) != "none":
            size = os.fstat(stream.fileno()).st_size
            with self._blobs.open(self._decompress(stream, size)) as plain:
                return self._read_archive(plain, path, name)
        archive = TarFiles(stream, Budget(self._limits))
        if _is_image(archive):
            return self._read_files(archive, name)
        stream.seek(0)
        size = os.fstat(stream.fileno()).st_size
        digest, _ = self._put(read_chunks(stream), path, size)
        return self._make_image(digest, size, archive.latest)

    def _decompress(self, stream: IO[bytes], compressed: int) -> str:
        budget = Budget(self._limits)
        with self._blobs.writer() as writer:
            for chunk in decompress(stream):
                budget.count_bytes(len(chunk))
                writer.write(chunk)
                budget.check_ratio(writer.size, compressed)
            return writer.commit()

    def _put(self, chunks: Iterable[bytes], what: str, size: int, digest: str | None = None) -> tuple[str, int]:
        """Copy a file of a known size. The size is checked first: it may be a terabyte of nothing."""
        self._copied.count_bytes(size)
        return self._blobs.put(report_chunks(chunks, self._on_progress, "copy", what, size), digest, size)

    def _read_files(self, files: FileSet, name: str | None) -> Source:
        return self._read_layout(files, name) if files.has("oci-layout") else self._read_docker(files, name)

    def _read_root_directory(self, path: str) -> Source:
        with self._blobs.writer() as writer:
            latest = write_tree(path, writer, Budget(self._limits))
            return self._make_image(writer.commit(), writer.size, latest)

    def _make_image(self, layer: str, size: int, latest: int) -> Source:
        """An image of one uncompressed layer. Its time is the latest of its files, so that it is reproducible."""
        config = {
            "architecture": own_architecture(),
            "os": "linux",
            "created": datetime.fromtimestamp(latest, UTC).isoformat().replace("+00:00", "Z"),
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer]},
            "history": [{"created_by": "warmcell image import"}],
        }
        return Source(self._put_manifest(config, [Descriptor(OCI_LAYER, layer, size)]), None)

    def _put_manifest(self, config: Any, layers: Sequence[Descriptor]) -> str:
        descriptor = Descriptor(OCI_CONFIG, *self._blobs.put_json(config))
        return self._blobs.put_json(make_manifest(descriptor, layers))[0]

    def _read_layout(self, files: FileSet, name: str | None) -> Source:
        descriptors = parse_index(read_json_file(files, "index.json"))
        chosen, found = _choose_image(descriptors, name)
        for _ in range(MAX_INDEX_DEPTH):
            self._copy(files, chosen)
            if chosen.media_type in MANIFESTS:
                manifest = parse_manifest(self._blobs.read_json(chosen.digest))
                for descriptor in (manifest.config, *manifest.layers):
                    self._copy(files, descriptor)
                return Source(chosen.digest, found)
            if chosen.media_type not in INDEXES:
                raise ImageInvalid(f"the index refers to {chosen.media_type[:100]!r}, which is not an image")
            chosen = choose(parse_index(self._blobs.read_json(chosen.digest)), own_architecture())
        raise ImageInvalid(f"the image's indexes are nested more than {MAX_INDEX_DEPTH} deep")

    def _copy(self, files: FileSet, descriptor: Descriptor) -> None:
        if not self._blobs.has(descriptor.digest):
            chunks = files.chunks(f"blobs/sha256/{hex_of(descriptor.digest)}")
            self._put(chunks, descriptor.digest, descriptor.size, descriptor.digest)

    def _read_docker(self, files: FileSet, name: str | None) -> Source:
        images = [
            require_object(item, "an image")
            for item in require_list(read_json_file(files, "manifest.json"), "manifest.json")
        ]
        image, found = _choose_docker(images, name)
        layers = require_list(image.get("Layers"), "the list of layers")
        check_layer_count(layers)
        config = image.get("Config")
        if not isinstance(config, str) or not all(isinstance(layer, str) for layer in layers):
            raise ImageInvalid("manifest.json does not name the image's files")
        read_json_file(files, config)  # checks it
        digest, size = self._put(files.chunks(config), config, files.size(config))
        descriptors = [Descriptor(OCI_LAYER, *self._put_layer(files, layer)) for layer in layers]
        manifest = make_manifest(Descriptor(OCI_CONFIG, digest, size), descriptors)
        return Source(self._blobs.put_json(manifest)[0], found)

    def _put_layer(self, files: FileSet, path: str) -> tuple[str, int]:
        return self._put(files.chunks(path), path, files.size(path))


def _is_image(files: FileSet) -> bool:
    return files.has("oci-layout") or files.has("manifest.json")


def _choose_image(descriptors: Sequence[Descriptor], name: str | None) -> tuple[Descriptor, str | None]:
    """The image of that name, or the only one, or the one for this machine."""
    names = {index: _name_in(item) for index, item in enumerate(descriptors)}
    for index, found in names.items():
        if name is not None and found in (name, name.rpartition(":")[2]):
            return descriptors[index], name
    known = sorted({found for found in names.values() if found})
    if len(known) > 1:
        raise InvalidRequest(
            f"the layout has the images {', '.join(known)[:500]}", field="name", hint="give one of these names"
        )
    chosen = choose(descriptors, own_architecture())
    return chosen, _name_in(chosen)


def _name_in(descriptor: Descriptor) -> str | None:
    for key in (_CONTAINERD_NAME, _REF_NAME):
        value = descriptor.annotations.get(key)
        if isinstance(value, str):
            return value
    return None


def _choose_docker(images: Sequence[dict[str, Any]], name: str | None) -> tuple[dict[str, Any], str | None]:
    tags = [[tag for tag in image.get("RepoTags") or [] if isinstance(tag, str)] for image in images]
    for image, known in zip(images, tags, strict=True):
        if name is not None and name in known:
            return image, name
    if len(images) != 1:
        known = [tag for some in tags for tag in some]
        raise InvalidRequest(
            f"the archive has {len(images)} images: {', '.join(known)[:500]}",
            field="name",
            hint="give one of these names",
        )
    return images[0], next(iter(tags[0]), None)
