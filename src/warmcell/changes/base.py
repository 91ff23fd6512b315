"""Bases: what a changed file was on the host before the guest changed it, as far as that is known.

A file is recorded when its change is first seen, provided that it has not changed on the host since: by its time of
change, which programs cannot set. What had already changed by then has no base, and never gets one.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b

from warmcell.changes import content
from warmcell.changes.text import MOST_TEXT_BYTES
from warmcell.workspace.names import Parts

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Base:
    """`digest` is "" for large files, and a link's target for links."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    mode: int
    digest: str = ""

    def is_state(self, state: os.stat_result) -> bool:
        """Whether the file was not touched since."""
        return replace(base_of(state, self.digest), mode=self.mode) == self

    @property
    def permissions(self) -> int:
        return stat.S_IMODE(self.mode) & 0o777


def base_of(state: os.stat_result, digest: str) -> Base:
    times = (state.st_mtime_ns, state.st_ctime_ns)
    return Base(state.st_dev, state.st_ino, state.st_size, *times, state.st_mode, digest)


class Bases:
    """Kept in a directory of ours: the facts in a line of JSON, then the content of a small file."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._known: dict[Parts, Base | None] = {}

    def get(self, parts: Parts) -> Base | None:
        if parts not in self._known:
            self._known[parts] = self._load(parts)
        return self._known[parts]

    def put(self, parts: Parts, state: os.stat_result, digest: str, data: bytes | None = None) -> None:
        made = self._known[parts] = base_of(state, digest)
        with open(os.open(self._path(parts), _CREATE, 0o600), "wb") as file:
            file.write(json.dumps(asdict(made)).encode() + b"\n")
            file.write(data or b"")

    def record(self, parts: Parts, fd: int) -> None:
        """The open file as it is now, unless it changes meanwhile."""
        before = os.fstat(fd)
        data = content.read_all(fd, MOST_TEXT_BYTES)
        digest = content.digest(fd) if data is None else content.digest_of(data)
        after = os.fstat(fd)
        if (before.st_ctime_ns, before.st_size) == (after.st_ctime_ns, after.st_size):
            self.put(parts, after, digest, data)

    def content(self, parts: Parts) -> bytes | None:
        """None if the file was too large to be kept."""
        base = self.get(parts)
        if base is None or base.size > MOST_TEXT_BYTES:
            return None
        with open(self._path(parts), "rb") as file:
            file.readline()
            return file.read()

    def _load(self, parts: Parts) -> Base | None:
        try:
            with open(self._path(parts), "rb") as file:
                return Base(**json.loads(file.readline()))
        except FileNotFoundError:
            return None

    def _path(self, parts: Parts) -> str:
        return os.path.join(self._directory, blake2b(os.fsencode("/".join(parts)), digest_size=20).hexdigest())
