"""The file of verdicts: one JSON line for each, written as they come, and repaired after an interruption."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import on_error
from warmcell.core.request_checks import check_text
from warmcell.evaluation.json_lines import parse_record, read_lines
from warmcell.judging.verdicts import NOT_JUDGED
from warmcell.workspace.untrusted_files import open_regular

_MOST_CHECKED = 1 << 20
_HINT = "give another file, or remove this one to start again"
Row = dict[str, Any]


class VerdictLog:
    """Appends to the file. Only one evaluation at a time has it open; the lock ends with its process.

    Opening repairs the file: a last line that an interruption cut off is removed, and so are verdicts that must be
    found again (`host_error`), so that no sample ever has two lines.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = open_regular(path, "out", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        with on_error(self.close):
            self._lock()
            self._remove_torn_line()
            self._remove_unjudged()

    def append(self, row: Row) -> None:
        """One write: a process that is killed leaves whole lines and at most one torn line at the end."""
        line = (json.dumps(row) + "\n").encode()
        while line:
            line = line[os.write(self._fd, line) :]

    def rows(self) -> Iterator[Row]:
        return read_verdicts(self.path)

    def close(self) -> None:
        os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or give another file"
            raise InvalidRequest(f"{self.path}: another evaluation writes to it", field="out", hint=hint) from None
        if not os.path.samestat(os.fstat(self._fd), os.stat(self.path)):  # replaced between open and lock
            raise InvalidRequest(f"{self.path}: was replaced", field="out", hint="try again")

    def _remove_torn_line(self) -> None:
        end = os.fstat(self._fd).st_size
        position = end
        while position > 0:
            start = max(0, position - 65536)
            newline = os.pread(self._fd, position - start, start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            if position:
                next(self.rows(), None)  # a file of something else is refused before it is changed
            elif not self._is_torn_verdict(end):
                raise InvalidRequest(f"{self.path}: not a file of verdicts", field="out", hint=_HINT)
            os.ftruncate(self._fd, position)

    def _is_torn_verdict(self, end: int) -> bool:
        """Whether the only line can be the beginning of a verdict, or is one without its end of line."""
        text = os.pread(self._fd, _MOST_CHECKED, 0)
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            return text.startswith(b"{")
        return isinstance(row, dict) and _is_verdict(row) and len(text) == end

    def _remove_unjudged(self) -> None:
        """Rewrites the file beside itself and renames it, so that an interruption leaves one or the other."""
        if not any(row["status"] in NOT_JUDGED for row in self.rows()):
            return
        copy = f"{self.path}.new"
        with suppress(FileNotFoundError):
            os.unlink(copy)  # left by an interruption, or a link that another person made
        fd = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        with on_error(lambda: os.close(fd)):
            fcntl.flock(fd, fcntl.LOCK_EX)
            with open(os.dup(fd), "wb") as file:
                for row in self.rows():
                    if row["status"] not in NOT_JUDGED:
                        file.write(json.dumps(row).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(copy, self.path)
        os.close(self._fd)
        self._fd = fd


def read_verdicts(path: str) -> Iterator[Row]:
    """The rows of a file of verdicts. Raises `InvalidRequest` for a line that is something else.

    The file is never compressed, whatever its name: `VerdictLog` cuts it by its lines.
    """
    with open(open_regular(path, "out"), "rb") as file:
        for place, line, _ in read_lines(file, path, "out"):
            try:
                row = parse_record(line, place, "out")
            except InvalidRequest as error:
                raise InvalidRequest(error.message.removeprefix("out: "), field="out", hint=_HINT) from None
            if not _is_verdict(row):
                raise InvalidRequest(f"{place}: not a verdict of an evaluation", field="out", hint=_HINT)
            yield row


def _is_verdict(row: Row) -> bool:
    """Whether the ledger can hold it: valid Unicode, and a number of SQLite's."""
    try:
        for name in ("task_id", "status", "digest"):
            check_text(name, row.get(name))
    except InvalidRequest:
        return False
    number = row.get("sample")
    return type(number) is int and 0 <= number < 1 << 63
