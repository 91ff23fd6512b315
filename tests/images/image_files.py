"""Images written by the tests: layers entry by entry, layouts, `docker save` archives."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def entry(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644, **more: Any
) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode, made.size = kind, link, mode, len(content)
    for key, value in more.items():
        setattr(made, key, value)
    return made, content


def directory(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind=tarfile.SYMTYPE, link=target)


def hardlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind=tarfile.LNKTYPE, link=target)


def layer(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, errors="surrogateescape") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def config_of(layers: list[bytes], config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "created": "2024-05-06T07:08:09.123456789Z",
        "config": config or {},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(data) for data in layers]},
        **more,
    }


class Layout:
    """An OCI layout in a directory; tests change what they want before `write`."""

    def __init__(self, layers: list[bytes], config: dict[str, Any] | None = None, *, compress: bool = False) -> None:
        self.blobs: dict[str, bytes] = {}
        packed = [gzip.compress(data, mtime=0) if compress else data for data in layers]
        kind = LAYER + "+gzip" if compress else LAYER
        self.config = config_of(layers, config)
        self.manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add_json(self.config, CONFIG),
            "layers": [self.add(data, kind) for data in packed],
        }

    def add(self, data: bytes, media_type: str) -> dict[str, Any]:
        digest = digest_of(data)
        self.blobs[digest] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def add_json(self, document: Any, media_type: str) -> dict[str, Any]:
        return self.add(json.dumps(document).encode(), media_type)

    def write(self, path: Path, index: Any = None) -> Path:
        """Write it; without an index, one that has the manifest."""
        blobs = path / "blobs/sha256"
        blobs.mkdir(parents=True)
        if index is None:
            index = {"schemaVersion": 2, "manifests": [self.add_json(self.manifest, MANIFEST)]}
        for digest, data in self.blobs.items():
            (blobs / digest.partition(":")[2]).write_bytes(data)
        (path / "index.json").write_text(json.dumps(index))
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        return path


def docker_archive(path: Path, layers: list[bytes], tags: list[str], config: dict[str, Any] | None = None) -> Path:
    """What `docker save` writes."""
    document = json.dumps(config_of(layers, config)).encode()
    name = digest_of(document).partition(":")[2] + ".json"
    files = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": name, "RepoTags": tags, "Layers": files}]).encode()
    members = [entry(name, document), *(entry(file, data) for file, data in zip(files, layers, strict=True))]
    path.write_bytes(layer(*members, entry("manifest.json", manifest)))
    return path
