"""BuildCache: the layer that a step produced, by a hash of everything the step depends on."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from warmcell.core.records import dataclass
from warmcell.images.blobs import BlobStore, encode_json
from warmcell.images.layers import LayerStore
from warmcell.images.manifests import Descriptor, parse_descriptor
from warmcell.images.records import list_names, read_record, write_record


@dataclass(frozen=True, slots=True)
class BuiltLayer:
    """A layer of the store and its blob; both are None if the step changed no files."""

    diff_id: str | None
    blob: Descriptor | None
    created: str


class BuildCache:
    """Records in the store's directory. A record whose layer was pruned counts as missing."""

    def __init__(self, path: str, blobs: BlobStore, layers: LayerStore) -> None:
        self._path = os.path.join(path, "builds")
        self._blobs, self._layers = blobs, layers

    def find(self, key: str) -> BuiltLayer | None:
        record = read_record(os.path.join(self._path, f"{key}.json"))
        return self._parse(record) if isinstance(record, dict) else None

    def put(self, key: str, built: BuiltLayer) -> None:
        blob = None if built.blob is None else built.blob.to_json()
        write_record(self._path, f"{key}.json", {"diff_id": built.diff_id, "blob": blob, "created": built.created})

    def remove_stale(self) -> None:
        """Remove records whose layers are gone. Only while no program builds an image."""
        for name in list_names(self._path):
            path = os.path.join(self._path, name)
            record = None if name.startswith(".") else read_record(path)  # hidden: left by a killed program
            if not isinstance(record, dict) or self._parse(record) is None:
                os.unlink(path)

    def _parse(self, record: dict[str, Any]) -> BuiltLayer | None:
        diff_id, created = record.get("diff_id"), str(record.get("created"))
        if diff_id is None:
            return BuiltLayer(None, None, created)
        blob = parse_descriptor(record.get("blob"))
        if not self._layers.has(diff_id) or not self._blobs.has(blob.digest):
            return None
        return BuiltLayer(diff_id, blob, created)


def make_key(*parts: Any) -> str:
    """A hash of plain data."""
    return hashlib.sha256(encode_json(json.loads(json.dumps(parts)))).hexdigest()
