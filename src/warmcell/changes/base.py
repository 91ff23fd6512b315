"""Bases: the host's version of each file that the guest changed, for three-way merges.

A base is recorded when the change is first detected, unless the file has changed on the host since the sandbox started,
judged by its ctime, which programs cannot set. Such a file never gets a base.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b

from warmcell.changes import content
from warmcell.changes.text import MOST_TEXT_BYTES
from warmcell.core.light import closing_fd
from warmcell.lifetime.descriptors import host_failure
from warmcell.workspace.files import put_file
from warmcell.workspace.names import Parts
from warmcell.workspace.root import OPEN_DIRECTORY


@dataclass(frozen=True, slots=True)
class Base:
    """`digest` is "" for large files, and the target for links."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    mode: int
    digest: str = ""

    def is_state(self, state: os.stat_result) -> bool:
        """Whether the file is unchanged."""
        return replace(base_of(state, self.digest), mode=self.mode) == self

    @property
    def permissions(self) -> int:
        return stat.S_IMODE(self.mode) & 0o777


def base_of(state: os.stat_result, digest: str) -> Base:
    times = (state.st_mtime_ns, state.st_ctime_ns)
    return Base(state.st_dev, state.st_ino, state.st_size, *times, state.st_mode, digest)


class Bases:
    """A directory with a file for each base: a line of JSON, then the content if it is small."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._known: dict[Parts, Base | None] = {}

    def get(self, parts: Parts) -> Base | None:
        if parts not in self._known:
            self._known[parts] = self._load(parts)
        return self._known[parts]

    def put(
        self, parts: Parts, state: os.stat_result, digest: str, data: bytes | None = None, mode: int | None = None
    ) -> None:
        """`mode`: the guest's, if a commit kept a different one of the host."""
        found = base_of(state, digest)
        base = found if mode is None else replace(found, mode=mode)
        line = json.dumps(asdict(base)).encode() + b"\n"
        try:
            with closing_fd(os.open(self._directory, OPEN_DIRECTORY)) as directory:
                put_file(directory, os.path.basename(self._path(parts)), line + (data or b""), 0o600)
        except OSError as error:  # typed: callers take an `OSError` for that of a file that a guest has removed
            raise host_failure(error, "record the host's version of a file") from error
        self._known[parts] = base

    def record(self, parts: Parts, fd: int, mode: int | None = None) -> None:
        """Record the open file, unless it changes meanwhile."""
        before = os.fstat(fd)
        data = content.read_all(fd, MOST_TEXT_BYTES)
        digest = content.digest(fd) if data is None else content.digest_of(data)
        after = os.fstat(fd)
        if (before.st_ctime_ns, before.st_size) == (after.st_ctime_ns, after.st_size):
            self.put(parts, after, digest, data, mode)

    def content(self, parts: Parts) -> bytes | None:
        """None if there is no base, or the file was too large to store or was not written completely."""
        base = self.get(parts)
        if base is None or base.size > MOST_TEXT_BYTES:
            return None
        with open(self._path(parts), "rb") as file:
            file.readline()
            data = file.read()
        return data if len(data) == base.size else None

    def _load(self, parts: Parts) -> Base | None:
        try:
            with open(self._path(parts), "rb") as file:
                return Base(**json.loads(file.readline()))
        except (FileNotFoundError, ValueError):  # ValueError: the disk was full, or the program was killed
            return None

    def _path(self, parts: Parts) -> str:
        return os.path.join(self._directory, blake2b(os.fsencode("/".join(parts)), digest_size=20).hexdigest())
