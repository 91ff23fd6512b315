"""AuditLog: one JSON line per relevant event, rotated by size; and a reader.

Each line is written by one write(2) on an O_APPEND descriptor, so several programs may share a file. A killed program
leaves at most its last line incomplete. The reader checks the types of the fields, not their origin.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import IO, Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.events import Event, listen
from warmcell.core.light import Closing
from warmcell.workspace.untrusted_files import load_object

MIB = 1 << 20
#: Events about progress, which are not audited.
_NOT_AUDITED = frozenset(
    {
        *("queue.entered", "queue.left", "run.asked", "run.started", "process.started", "cell", "network.closed"),
        *("program.started", "program.ended"),
    }
)
#: A longer line would be unreadable, and hide what it says: guests choose paths and names.
_LONGEST_LINE = 64 * 1024
_LONGEST_TEXT = 4096


class AuditLog(Closing):
    """Listens from construction until `close`. At `max_bytes` the file is renamed to `FILE.1`, that one to `FILE.2`."""

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = 64 * MIB, keep: int = 5) -> None:
        for field, size, least in (("max_bytes", max_bytes, 1), ("keep", keep, 0)):
            if size < least:
                raise InvalidRequest(f"must be at least {least}", field=field)
        self._path = os.fspath(path)
        self._max_bytes = max_bytes
        self._keep = keep
        self._lock = threading.Lock()
        self._file = self._open()
        self._is_cut = self._ends_within_a_line()
        self._stop = listen(self._on_event)

    def _open(self) -> int:
        """Open with mode 0600: the audit names files and hosts."""
        try:
            return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidRequest(f"cannot write to {self._path!r}: {reason}", field="audit") from None

    def _ends_within_a_line(self) -> bool:
        """Whether a killed program left its last line incomplete."""
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"

    def _on_event(self, event: Event) -> None:
        if event.name in _NOT_AUDITED or event.fields.get("is_left_out"):
            return
        data = _format(event)
        with self._lock:
            if self._file >= 0:
                self._rotate_for(len(data))
                self._append(data)

    def _append(self, data: bytes) -> None:
        """Append a line; after one that was cut off (killed program, full disk), start a new line first."""
        data = b"\n" * self._is_cut + data
        self._is_cut = True
        self._is_cut = os.write(self._file, data) != len(data)

    def _rotate_for(self, size: int) -> None:
        if os.fstat(self._file).st_size + size <= self._max_bytes or os.fstat(self._file).st_size == 0:
            return
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another program is rotating it: two at once would replace what one has just rotated
            return
        except OSError:  # a file system without locks
            pass
        former = self._file
        try:
            self._rotate()
        finally:
            with suppress(OSError):  # closing is not enough: a forked child may have it open, too
                fcntl.flock(former, fcntl.LOCK_UN)
        if former != self._file:
            os.close(former)

    def _rotate(self) -> None:
        if self._is_still_there():
            for number in range(self._keep, 0, -1):
                older = f"{self._path}.{number - 1}" if number > 1 else self._path
                if os.path.lexists(older):
                    os.replace(older, f"{self._path}.{number}")
            if self._keep == 0:
                os.unlink(self._path)
        with suppress(InvalidRequest):  # full disk, no free descriptor: the renamed file gets the lines meanwhile
            self._file = self._open()

    def _is_still_there(self) -> bool:
        """Whether the path is still our file: another program that shares it may have rotated it."""
        try:
            return os.path.samestat(os.lstat(self._path), os.fstat(self._file))
        except OSError:
            return False

    def close(self) -> None:
        self._stop()
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


def _format(event: Event) -> bytes:
    """A line that `read_audit` can read, however long the texts are that guests and clients chose."""
    known = {"time": round(event.time, 3), "event": event.name, "subject": _shorten(event.subject)}
    fields = {name: _shorten(value) for name, value in event.fields.items() if value is not None}
    data = _encode({**known, **fields})
    return data if len(data) < _LONGEST_LINE else _encode({**known, "left_out": sorted(fields)})


def _encode(line: dict[str, Any]) -> bytes:
    return (json.dumps(line, ensure_ascii=True, default=str) + "\n").encode()


def _shorten(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= _LONGEST_TEXT:
        return value
    return f"{value[:_LONGEST_TEXT]}... ({len(value) - _LONGEST_TEXT} more characters)"


def read_audit(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records; an incomplete, too long or invalid line is `{"event": "unreadable", "line": number}`."""
    number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if not line.endswith(b"\n"):
            while (rest := file.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
        yield _record(line) or {"event": "unreadable", "line": number}


def _record(line: bytes) -> dict[str, Any] | None:
    record = load_object(line)
    if record is None or not isinstance(record.get("event"), str):
        return None
    return record if isinstance(record.get("time", 0), int | float) else None


def in_words(record: dict[str, Any]) -> str:
    """One readable line. Text from guests (paths, hosts) is escaped, since it may contain terminal escapes."""
    if record["event"] == "unreadable":
        return f"line {record['line']}: unreadable"
    describe = _DESCRIBERS.get(record["event"])
    subject = ascii(record.get("subject", ""))[1:-1][:8]
    words = _word(record, "event") if describe is None else describe(record)
    return f"{_time(record.get('time', 0))}  {subject:8}  {words}"


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "(no time)          "


def _describe_run(record: dict[str, Any]) -> str:
    words = [_word(record, "language"), "on", _word(record, "backend"), _word(record, "outcome")]
    forms = {"exit_code": "exit {}", "signal": "signal {}", "error": "{}", "fault": "fault of the {}"}
    for name, form in forms.items():
        if name in record:
            words.append(form.format(_word(record, name)))
    if isinstance(record.get("duration"), int | float):
        words.append(f"in {record['duration'] * 1000:.0f} ms")
    if "policy" in record:
        words.append(f"under policy {_word(record, 'policy')}")
    return " ".join(words)


def _describe_network(record: dict[str, Any]) -> str:
    where = f"{_word(record, 'host')}:{_word(record, 'port')}"
    before = f", after {_word(record, 'left_out')} more that are not listed" if "left_out" in record else ""
    after = ", the next are counted only" if record.get("is_last_listed") else ""
    return f"{_word(record, 'decision')} {where} by {_word(record, 'rule')}{before}{after}"


def _describe_cell(record: dict[str, Any]) -> str:
    words = ["cell", _word(record, "outcome"), *([_word(record, "error")] if "error" in record else ())]
    if isinstance(record.get("duration"), int | float):
        words.append(f"in {record['duration'] * 1000:.0f} ms")
    return " ".join(words)


def _describe_process(record: dict[str, Any]) -> str:
    end = f"exit {_word(record, 'exit_code')}" if "exit_code" in record else "gone with its cage"
    return f"process {_word(record, 'pid')} {end}"


def _word(record: dict[str, Any], name: str) -> str:
    value = record.get(name, "?")
    return ascii(value)[1:-1] if isinstance(value, str) else ascii(value)


_DESCRIBERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "run.ended": _describe_run,
    "session.cell": _describe_cell,
    "process.ended": _describe_process,
    "denial": lambda record: f"refused {_word(record, 'kind')} {_word(record, 'what')} by {_word(record, 'rule')}",
    "network": _describe_network,
    "file": lambda record: f"{_word(record, 'operation')} {_word(record, 'path')}",
}
