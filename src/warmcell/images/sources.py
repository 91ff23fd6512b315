"""Reads images that other tools wrote: OCI layouts, `docker save` archives, root file systems."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import IO, Any, Protocol

from warmcell.core.errors import ImageInvalid, InvalidRequest
from warmcell.core.records import dataclass
from warmcell.images.blobs import CHUNK, BlobStore, BlobWriter, decode_json, hex_of, read_chunks
from warmcell.images.decompress import LayerReader, compression_of, decompress
from warmcell.images.layer_tar import write_tree
from warmcell.images.limits import MAX_INDEX_DEPTH, MAX_JSON_BYTES, Budget, ImageLimits
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
from warmcell.images.progress import ImageProgress, OnProgress, report_chunks
from warmcell.images.tar_reader import read_entries
from warmcell.workspace.root import Root
from warmcell.workspace.untrusted_files import open_regular

_MOST_LINKS = 8


class FileSet(Protocol):
    """Files by path. Paths come from the image, so implementations confine them."""

    def has(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def chunks(self, path: str) -> Iterator[bytes]: ...


def read_json_file(files: FileSet, path: str) -> object:
    if files.size(path) > MAX_JSON_BYTES:
        raise ImageInvalid(f"{path} is larger than {MAX_JSON_BYTES} bytes")
    return decode_json(b"".join(files.chunks(path)), path)


class DirectoryFiles:
    """The files beneath a directory. Links are refused."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def has(self, path: str) -> bool:
        try:
            return stat.S_ISREG(self._root.lstat(_parts(path)).st_mode)
        except OSError:
            return False

    def size(self, path: str) -> int:
        return self._root.lstat(_parts(path)).st_size if self.has(path) else _missing(path)

    def chunks(self, path: str) -> Iterator[bytes]:
        if not self.has(path):
            _missing(path)
        with self._root.file(_parts(path)) as fd:
            while chunk := os.read(fd, CHUNK):
                yield chunk


class TarFiles:
    """The members of an uncompressed tar file, by offset. Links between members are resolved within the archive."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self._stream = stream
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        #: The latest modification time of a member.
        self.latest = 0
        self._scan(budget)

    def _scan(self, budget: Budget) -> None:
        reader = SeekingReader(self._stream, budget)
        for entry in read_entries(reader):
            budget.count_entry(entry.path)
            self.latest = max(self.latest, entry.mtime)
            path = os.fsdecode(b"/".join(entry.path))
            self._links.pop(path, None)
            self._members.pop(path, None)
            if entry.kind == "file":
                self._members[path] = (reader.position, entry.size)
            elif entry.kind in ("symlink", "hardlink"):
                base = "" if entry.kind == "hardlink" else posixpath.dirname(path)
                self._links[path] = posixpath.normpath(posixpath.join(base, os.fsdecode(entry.link)))

    def has(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        return self._member(path)[1]

    def chunks(self, path: str) -> Iterator[bytes]:
        offset, size = self._member(path)
        self._stream.seek(offset)
        yield from read_chunks(self._stream, size)

    def _member(self, path: str) -> tuple[int, int]:
        return self._find(path) or (0, _missing(path))

    def _find(self, path: str) -> tuple[int, int] | None:
        path = posixpath.normpath(path)
        for _ in range(_MOST_LINKS):
            if path not in self._links:
                return self._members.get(path)
            path = self._links[path]
        return None


class SeekingReader(LayerReader):
    """Reads headers of a file and skips content without reading it."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        super().__init__(iter(()), budget, 0)
        self._stream = stream
        self._end = stream.seek(0, os.SEEK_END)
        stream.seek(0)

    @property
    def position(self) -> int:
        return self._stream.tell()

    def read_exactly(self, size: int) -> bytes:
        return self._stream.read(size)

    def skip(self, size: int) -> None:
        if size > self._end - self._stream.tell():
            raise ImageInvalid("the archive is truncated")
        self._stream.seek(size, os.SEEK_CUR)


def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(path.split("/"))
    if not all(part not in ("", ".", "..") and "\0" not in part for part in parts):
        raise ImageInvalid(f"{path[:200]!r} is not a path within the image")
    return parts


def _missing(path: str) -> int:
    raise ImageInvalid(f"the image has no file {path[:200]!r}")


_REF_NAME, _CONTAINERD_NAME = "org.opencontainers.image.ref.name", "io.containerd.image.name"


@dataclass(frozen=True, slots=True)
class Source:
    """An image whose blobs are in the store: the digest of its manifest, and its name in the archive."""

    manifest: str
    name: str | None


class SourceReader:
    """Detects the format of a path and reads it. Used for one import, whose size its budget limits."""

    def __init__(self, blobs: BlobStore, limits: ImageLimits, on_progress: OnProgress | None) -> None:
        self._blobs, self._limits = blobs, limits
        self._copied = Budget(limits)
        self._on_progress = on_progress

    def read(self, path: str, name: str | None) -> Source:
        if not os.path.isdir(path):
            with open(open_regular(path, "path"), "rb") as stream:
                return self._read_archive(stream, path, name)
        with Root(path) as root:
            files = DirectoryFiles(root)
            return self._read_files(files, name) if _is_image(files) else self._read_root_directory(path)

    def _read_archive(self, stream: IO[bytes], path: str, name: str | None, *, is_decompressed: bool = False) -> Source:
        if compression_of(stream) != "none":
            if is_decompressed:  # there are files that decompress to themselves
                raise ImageInvalid("the archive is compressed more than once", hint="decompress it first")
            size = os.fstat(stream.fileno()).st_size
            # A file that is removed afterwards, not a blob: no image refers to the archive as a whole.
            with self._blobs.writer() as writer, self._decompress(stream, path, size, writer) as plain:
                return self._read_archive(plain, path, name, is_decompressed=True)
        archive = TarFiles(stream, Budget(self._limits))
        if _is_image(archive):
            return self._read_files(archive, name)
        stream.seek(0)
        size = os.fstat(stream.fileno()).st_size
        digest, _ = self._put(read_chunks(stream), path, size)
        return self._make_image(digest, size, archive.latest)

    def _decompress(self, stream: IO[bytes], path: str, compressed: int, writer: BlobWriter) -> IO[bytes]:
        budget = Budget(self._limits)
        for chunk in decompress(stream):
            budget.count_bytes(len(chunk))
            writer.write(chunk)
            budget.check_ratio(writer.size, compressed)
            if self._on_progress is not None:
                self._on_progress(ImageProgress("unpack", path, stream.tell(), compressed))
        return writer.reopen()

    def _put(self, chunks: Iterable[bytes], what: str, size: int, digest: str | None = None) -> tuple[str, int]:
        """Store a file of a known size. The size is checked first: a sparse file may have terabytes."""
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
        return self._put_manifest(self._blobs.put_json(config), [(layer, size)], None)

    def _put_manifest(self, config: tuple[str, int], layers: list[tuple[str, int]], name: str | None) -> Source:
        """Write the manifest for blobs in the store, given by digest and size."""
        manifest = make_manifest(Descriptor(OCI_CONFIG, *config), [Descriptor(OCI_LAYER, *layer) for layer in layers])
        return Source(self._blobs.put_json(manifest)[0], name)

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
        images = require_list(read_json_file(files, "manifest.json"), "manifest.json")
        image, found = _choose_docker([require_object(item, "an image") for item in images], name)
        layers = require_list(image.get("Layers"), "the list of layers")
        check_layer_count(layers)
        config = image.get("Config")
        if not isinstance(config, str) or not all(isinstance(layer, str) for layer in layers):
            raise ImageInvalid("manifest.json does not name the image's files")
        read_json_file(files, config)  # checks it
        blobs = [self._put(files.chunks(path), path, files.size(path)) for path in (config, *layers)]
        return self._put_manifest(blobs[0], blobs[1:], found)


def _is_image(files: FileSet) -> bool:
    return files.has("oci-layout") or files.has("manifest.json")


def _choose_image(descriptors: Sequence[Descriptor], name: str | None) -> tuple[Descriptor, str | None]:
    """Choose the image of that name, or the only one, or the one for this machine."""
    names = {index: _name_in(item) for index, item in enumerate(descriptors)}
    for index, found in names.items():
        if name is not None and found in (name, name.rpartition(":")[2]):
            return descriptors[index], name
    known = sorted({found for found in names.values() if found})
    if len(known) > 1:
        reason = f"the layout has the images {', '.join(known)[:500]}"
        raise InvalidRequest(reason, field="name", hint="give one of these names")
    chosen = choose(descriptors, own_architecture())
    return chosen, _name_in(chosen)


def _name_in(descriptor: Descriptor) -> str | None:
    values = (descriptor.annotations.get(key) for key in (_CONTAINERD_NAME, _REF_NAME))
    return next((value for value in values if isinstance(value, str)), None)


def _choose_docker(images: Sequence[dict[str, Any]], name: str | None) -> tuple[dict[str, Any], str | None]:
    listed = [require_list(image.get("RepoTags") or [], "RepoTags") for image in images]
    tags = [[tag for tag in found if isinstance(tag, str)] for found in listed]
    for image, known in zip(images, tags, strict=True):
        if name is not None and name in known:
            return image, name
    if len(images) != 1:
        known = [tag for some in tags for tag in some]
        reason = f"the archive has {len(images)} images: {', '.join(known)[:500]}"
        raise InvalidRequest(reason, field="name", hint="give one of these names")
    return images[0], next(iter(tags[0]), None)
