"""Reads records one at a time, from JSON lines or from the caller's iterable, with the place of each."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from warmcell.core.compressed_members import TooManyMembers, gunzip
from warmcell.core.errors import InvalidRequest
from warmcell.core.types import MIB
from warmcell.workspace.untrusted_files import parse_json

LONGEST_LINE = 256 * MIB
#: Bytes in a gzip member, on average: some tools write one for each record.
_LEAST_RECORD = 16
Record = dict[str, Any]
Source = str | os.PathLike[str] | Iterable[Mapping[str, Any]]


def read_records(source: Source, field: str) -> Iterator[tuple[str, Record]]:
    """Each record and its place: `tasks.jsonl:3`, or `tasks[3]` of an iterable. A file may be gzipped."""
    if not isinstance(source, str | os.PathLike):
        for index, record in enumerate(source):
            if not isinstance(record, Mapping):
                kind = type(record).__name__
                raise InvalidRequest(f"must be a mapping such as a dict, not {kind}", field=f"{field}[{index}]")
            yield f"{field}[{index}]", dict(record)
        return
    path = os.fspath(source)
    with open_lines(path, field) as file:
        for place, line, _ in read_lines(file, path, field):
            yield place, parse_record(line, place, field)


def open_lines(path: str, field: str) -> IO[bytes]:
    try:
        return io.BufferedReader(_Unzipped(path), MIB) if path.endswith(".gz") else open(path, "rb")
    except OSError as error:
        raise InvalidRequest(f"{path}: {(error.strerror or str(error)).lower()}", field=field) from None


class _Unzipped(io.RawIOBase):
    """The content of a gzip file, from its start to its end."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115  # `close` closes it
        self._pieces = gunzip(iter(lambda: self._file.read(MIB), b""), is_strict=True, least_average=_LEAST_RECORD)
        self._piece = memoryview(b"")
        self._is_empty = not self._file.peek(1)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        target = memoryview(buffer).cast("B")
        if not self._piece and not self._is_empty:
            self._piece = memoryview(next(self._pieces, b""))
        size = min(len(target), len(self._piece))
        target[:size], self._piece = self._piece[:size], self._piece[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def read_lines(file: IO[bytes], name: str, field: str) -> Iterator[tuple[str, bytes, int]]:
    """The place, text and offset of each line that is not blank."""
    offset = number = 0
    try:
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise InvalidRequest(f"{name}:{number}: longer than {LONGEST_LINE // MIB} MiB", field=field)
            if line.strip():
                yield f"{name}:{number}", line, offset
            offset += len(line)
    except (OSError, EOFError, zlib.error, TooManyMembers) as error:  # a damaged gzip file, a disk that fails
        raise InvalidRequest(f"{name}:{number + 1}: cannot be read: {error}", field=field) from None


def parse_record(line: bytes, place: str, field: str) -> Record:
    try:
        record = parse_json(line.decode("utf-8-sig"))
    except ValueError as error:
        raise InvalidRequest(f"{place}: invalid JSON: {error}", field=field) from None
    if not isinstance(record, dict):
        raise InvalidRequest(f"{place}: not a JSON object", field=field)
    return record
