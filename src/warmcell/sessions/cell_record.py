"""The output and displays of a cell so far, within bounds. Pure."""

from __future__ import annotations

import codecs
from typing import Any

from warmcell.core.types import ExecResult, Usage
from warmcell.sessions.cell_events import MOST_PARTS, Display, Done, Piece, content_of, count_parts
from warmcell.sessions.cell_results import CellResult, DisplayData

_DECODER = codecs.getincrementaldecoder("utf-8")
_MOST_DISPLAYS = 1000
_MOST_DISPLAY_CHARACTERS = 32 * 1024 * 1024
_MOST_TYPES = 64
#: The memory that a piece takes besides its text: a worker may send any number of short ones.
_PIECE_OVERHEAD = 100
#: Of the JSON of all displays together: as objects, values take up to twenty times the memory of their text.
_MOST_PARTS_OF_CELL = 3 * MOST_PARTS


class StreamText:
    """The text of one stream, up to a cap. Joins characters that are split between pieces."""

    is_truncated = False
    _decoder: codecs.IncrementalDecoder | None = None  # most cells print nothing

    def __init__(self, most_bytes: int) -> None:
        self._most = self._room = most_bytes
        self._parts: list[str] = []

    def add(self, data: bytes, is_last: bool = False) -> str:
        """Adds data and returns the new text."""
        if not data and self._decoder is None:
            return ""
        if len(data) > self._room:
            data = data[: self._room]
            self.is_truncated = True
        self._room -= len(data)
        if self._decoder is None:
            self._decoder = _DECODER("replace")
        text = self._decoder.decode(data, is_last)
        if text:
            self._parts.append(text)
        return text

    def clear(self) -> None:
        self._parts.clear()
        self._room = self._most
        self.is_truncated = False

    @property
    def text(self) -> str:
        return "".join(self._parts)


class CellRecord:
    """Collects the output of a cell. The reader of the pipes feeds `stdout` and `stderr`."""

    _room = _MOST_DISPLAY_CHARACTERS
    _parts = _MOST_PARTS_OF_CELL
    _is_truncated = False

    def __init__(self, most_bytes: int) -> None:
        self.stdout = StreamText(most_bytes)
        self.stderr = StreamText(most_bytes)
        self._outputs: list[DisplayData] = []
        #: The long texts of the next display, by type; None for one that is left out.
        self._pieces: dict[str, list[str] | None] = {}

    def add_piece(self, piece: Piece) -> None:
        if piece.mime not in self._pieces and len(self._pieces) >= _MOST_TYPES:
            self._is_truncated = True
            return
        parts = self._pieces.setdefault(piece.mime, [])
        if parts is not None and self._takes(len(piece.text) + _PIECE_OVERHEAD):
            parts.append(piece.text)
        else:
            self._pieces[piece.mime] = None  # half of it would be worse than nothing

    def add_display(self, display: Display) -> DisplayData | None:
        """Adds a display and returns it for callbacks; None if it exceeds the bounds."""
        texts = display.mime
        size = sum([len(mime) + len(text) for mime, text in texts.items()])
        if self._pieces:
            texts = {**texts, **{mime: "".join(parts) for mime, parts in self._pieces.items() if parts is not None}}
            self._pieces = {}
        self._is_truncated |= display.is_cut
        if not self._takes(size) or len(self._outputs) >= _MOST_DISPLAYS:
            self._is_truncated = True
            return None
        mime = {name: self._content(name, text) for name, text in texts.items()}
        shown = DisplayData(mime, display.is_result, display.display_id, display.is_update)
        if not (display.is_update and self._replace(shown)):
            self._outputs.append(shown)
        return shown

    def _content(self, mime: str, text: str) -> str | dict[str, Any]:
        content = content_of(mime, text, min(self._parts, MOST_PARTS))
        if not isinstance(content, str):
            self._parts -= count_parts(text)
        return content

    def _replace(self, shown: DisplayData) -> bool:
        places = [index for index, other in enumerate(self._outputs) if other.display_id == shown.display_id]
        for index in places:
            self._outputs[index] = DisplayData(shown.mime, self._outputs[index].is_result, shown.display_id)
        return bool(places)

    def _takes(self, size: int) -> bool:
        if size > self._room:
            self._is_truncated = True
            return False
        self._room -= size
        return True

    def clear(self) -> None:
        """Clearing does not free the quota for displays: a guest could clear and send for ever."""
        self.stdout.clear()
        self.stderr.clear()
        self._outputs.clear()
        self._pieces.clear()

    def result(self, done: Done, count: int, duration: float) -> CellResult:
        value = done.value
        if self._outputs:
            value = next((output.text for output in self._outputs if output.is_result), value)
        return CellResult(
            stdout=self.stdout.text,
            stderr=self.stderr.text,
            outputs=self._outputs,
            value=value,
            error=done.error,
            execution_count=count,
            duration=duration,
            usage=Usage(done.cpu_time, duration, done.peak_memory),
            stdout_truncated=self.stdout.is_truncated,
            stderr_truncated=self.stderr.is_truncated,
            outputs_truncated=self._is_truncated,
        )

    def so_far(self, duration: float) -> ExecResult:
        """The partial result, for the error of a cell that was ended."""
        return ExecResult(
            stdout=self.stdout.text,
            stderr=self.stderr.text,
            exit_code=-1,
            duration=duration,
            stdout_truncated=self.stdout.is_truncated,
            stderr_truncated=self.stderr.is_truncated,
            outputs=[dict(output.mime) for output in self._outputs],
        )
