"""AuditLog: one line of JSON for each event that matters, appended whole, rotated by size; and how to read it back.

A line is written by one system call on a descriptor that appends, so several programs may share a file, and what a
killed program wrote until then is whole, but perhaps for the line that it was just writing. Who reads it can trust the
kinds of its fields, not that nobody else wrote to it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO, Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.events import Event, listen

MIB = 1 << 20
#: What only says that something is under way is no matter for an audit.
_LEFT_OUT = frozenset({"run.asked", "run.started", "process.started", "cell", "network.closed"})
_LONGEST_LINE = 64 * 1024


class AuditLog:
    """Listens from the moment it is made until `close`. At `max_bytes` the file becomes `FILE.1`, that one `FILE.2`."""

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = 64 * MIB, keep: int = 5) -> None:
        if max_bytes < 1 or keep < 0:
            raise InvalidRequest("must be at least 1 byte, and keep no fewer than 0 files", field="max_bytes")
        self._path = os.fspath(path)
        self._max_bytes = max_bytes
        self._keep = keep
        self._lock = threading.Lock()
        self._file = self._opened()
        self._is_cut = self._ends_within_a_line()
        self._stop = listen(self._hear)

    def _opened(self) -> int:
        """Only for its owner: it names files and hosts."""
        try:
            return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidRequest(f"cannot write to {self._path!r}: {reason}", field="audit") from None

    def _ends_within_a_line(self) -> bool:
        """A program that is killed while it writes may leave its last line unfinished."""
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"

    def _hear(self, event: Event) -> None:
        if event.name in _LEFT_OUT:
            return
        said = {name: value for name, value in event.fields.items() if value is not None}
        line = {"time": round(event.time, 3), "event": event.name, "subject": event.subject, **said}
        data = (json.dumps(line, ensure_ascii=True, default=str) + "\n").encode()
        with self._lock:
            if self._file >= 0:
                self._rotate_for(len(data))
                self._append(data)

    def _append(self, data: bytes) -> None:
        """After a line that a full disk cut off, the next one begins on a line of its own."""
        data = b"\n" * self._is_cut + data
        self._is_cut = True
        self._is_cut = os.write(self._file, data) != len(data)

    def _rotate_for(self, size: int) -> None:
        if os.fstat(self._file).st_size + size <= self._max_bytes or os.fstat(self._file).st_size == 0:
            return
        if self._is_still_there():
            for number in range(self._keep, 0, -1):
                older = f"{self._path}.{number - 1}" if number > 1 else self._path
                if os.path.lexists(older):
                    os.replace(older, f"{self._path}.{number}")
            if self._keep == 0:
                os.unlink(self._path)
        os.close(self._file)
        self._file = self._opened()

    def _is_still_there(self) -> bool:
        """Not where another program that shares the file has just rotated it."""
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

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read_audit(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The lines as records; what is none (cut off, too long, not ours) as `{"event": "unreadable", "line": number}`."""
    number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if not line.endswith(b"\n"):
            while (rest := file.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
        yield _record(line) or {"event": "unreadable", "line": number}


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        return None
    return record if isinstance(record.get("time", 0), int | float) else None


def in_words(record: dict[str, Any]) -> str:
    """One line for a person. What guests chose (paths, hosts) is quoted, so that it cannot move a terminal's cursor."""
    if record["event"] == "unreadable":
        return f"line {record['line']}: cannot be read"
    say = _WORDS.get(record["event"], _say_anything)
    subject = ascii(record.get("subject", ""))[1:-1][:8]
    return f"{_time(record.get('time', 0))}  {subject:8}  {say(record)}"


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "(no time)          "


def _say_run(record: dict[str, Any]) -> str:
    words = [_word(record, "language"), "on", _word(record, "backend"), _word(record, "outcome")]
    for name, form in (
        ("exit_code", "exit {}"),
        ("signal", "signal {}"),
        ("error", "{}"),
        ("fault", "fault of the {}"),
    ):
        if name in record:
            words.append(form.format(_word(record, name)))
    if isinstance(record.get("duration"), int | float):
        words.append(f"in {record['duration'] * 1000:.0f} ms")
    if "policy" in record:
        words.append(f"under policy {_word(record, 'policy')}")
    return " ".join(words)


def _say_denial(record: dict[str, Any]) -> str:
    return f"refused {_word(record, 'kind')} {_word(record, 'what')} by {_word(record, 'rule')}"


def _say_network(record: dict[str, Any]) -> str:
    where = f"{_word(record, 'host')}:{_word(record, 'port')}"
    return f"{_word(record, 'decision')} {where} by {_word(record, 'rule')}"


def _say_file(record: dict[str, Any]) -> str:
    return f"{_word(record, 'operation')} {_word(record, 'path')}"


def _say_cell(record: dict[str, Any]) -> str:
    words = ["cell", _word(record, "outcome"), *([_word(record, "error")] if "error" in record else ())]
    if isinstance(record.get("duration"), int | float):
        words.append(f"in {record['duration'] * 1000:.0f} ms")
    return " ".join(words)


def _say_process(record: dict[str, Any]) -> str:
    end = f"exit {_word(record, 'exit_code')}" if "exit_code" in record else "gone with its cage"
    return f"process {_word(record, 'pid')} {end}"


def _say_anything(record: dict[str, Any]) -> str:
    return ascii(record["event"])[1:-1]


def _word(record: dict[str, Any], name: str) -> str:
    value = record.get(name, "?")
    return ascii(value)[1:-1] if isinstance(value, str) else ascii(value)


_WORDS = {
    "run.ended": _say_run,
    "session.cell": _say_cell,
    "process.ended": _say_process,
    "denial": _say_denial,
    "network": _say_network,
    "file": _say_file,
}
