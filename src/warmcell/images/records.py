"""The small files of a store: the digest of each name, and a record of each image."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from warmcell.core.errors import ImageNotFound
from warmcell.core.records import dataclass
from warmcell.images.blobs import BlobStore, hex_of
from warmcell.images.layers import LayerStore
from warmcell.images.limits import ImageLimits
from warmcell.images.references import is_digest
from warmcell.lifetime.own_modes import grant_owner, make_directories
from warmcell.workspace.untrusted_files import parse_json

_UNFINISHED = ".record-"


class Records:
    """Each record is one file, replaced as a whole, so that readers need no lock."""

    def __init__(self, path: str) -> None:
        self._names = os.path.join(path, "names")
        self.images = os.path.join(path, "images")

    def names(self) -> dict[str, str]:
        """The digest of every name whose image is in the store."""
        found = {}
        for file in list_names(self._names):
            record = None if file.startswith(".") else read_record(os.path.join(self._names, file))
            if isinstance(record, dict) and self.has_image(str(record.get("digest"))):
                found[str(record.get("name"))] = str(record["digest"])
        return found

    def set_name(self, name: str, digest: str) -> None:
        write_record(self._names, _file_of(name), {"name": name, "digest": digest})

    def remove_name(self, name: str) -> None:
        with suppress(FileNotFoundError):  # another program has removed it
            os.unlink(os.path.join(self._names, _file_of(name)))

    def image_directory(self, digest: str) -> str:
        """Leases of the image hold a lock on it."""
        return os.path.join(self.images, hex_of(digest))

    def has_image(self, digest: str) -> bool:
        """Raises `PermissionError` instead of reporting an unreadable image as missing."""
        if not is_digest(digest):
            return False
        try:
            return stat.S_ISREG(os.stat(os.path.join(self.image_directory(digest), "image.json")).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_intact(self, digest: str) -> bool:
        """Whether the record of an image in the store is not damaged."""
        return isinstance(read_record(os.path.join(self.image_directory(digest), "image.json")), dict)

    def image(self, digest: str) -> dict[str, Any]:
        record = read_record(os.path.join(self.image_directory(digest), "image.json"))
        if not isinstance(record, dict):
            raise ImageNotFound(digest)
        return record

    def remove_unfinished(self) -> None:
        """Remove files that killed programs left. Only while no program adds an image."""
        directories = [self._names, *(os.path.join(self.images, name) for name in list_names(self.images))]
        for directory in directories:
            for name in list_names(directory):
                if name.startswith(_UNFINISHED):
                    os.unlink(os.path.join(directory, name))

    def image_digests(self) -> list[str]:
        return [digest for name in list_names(self.images) if is_digest(digest := f"sha256:{name}")]

    def put_image(self, digest: str, record: dict[str, Any]) -> None:
        write_record(self.image_directory(digest), "image.json", record)


def _file_of(name: str) -> str:
    return quote(name, safe="") + ".json"


def list_names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def read_record(path: str) -> Any:
    """None if it is missing or damaged: one truncated file must not make the whole store unusable."""
    try:
        with open(path, "rb") as file:
            return parse_json(file.read())
    except (FileNotFoundError, ValueError):
        return None


def write_record(directory: str, name: str, document: Any) -> None:
    make_directories(directory)
    temporary = os.path.join(directory, _UNFINISHED + os.urandom(8).hex())
    try:
        with open(temporary, "x", encoding="ascii") as file:
            grant_owner(file.fileno())
            json.dump(document, file)
        os.rename(temporary, os.path.join(directory, name))
    except BaseException:
        with suppress(FileNotFoundError):  # a full disk may refuse the file itself
            os.unlink(temporary)
        raise


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The components of a store, for code that holds its shared lock."""

    path: str
    blobs: BlobStore
    layers: LayerStore
    records: Records
    limits: ImageLimits
