"""Validates the messages of a session's worker. Pure: a message becomes an event or a `FrameError`.

The worker runs the guest's code in its own process, so the guest may have forged any message.
"""

from __future__ import annotations

import json
import math
from typing import Any

from warmcell.core.records import dataclass
from warmcell.guest.live.frames import FrameError
from warmcell.sessions.cell_results import CellError

_MOST_TYPES = 32
_LONGEST_NAME = 200
#: Bounds on JSON that is passed on as data: the number of values in one text, and the nesting depth.
MOST_PARTS, _DEEPEST = 200_000, 64
_MOST_PEAK = 1 << 50
_MOST_SECONDS = 1e9
_FIGURES = (int, float)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a long text of the next display."""

    mime: str
    text: str


@dataclass(frozen=True, slots=True)
class Display:
    mime: dict[str, str]
    is_result: bool
    display_id: str | None
    is_update: bool
    #: The mark that gives its position in the output; 0 for the end.
    mark: int = 0
    #: The worker left out a form of it that was too large.
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Clear:
    """Discards what the cell has printed and displayed so far."""

    mark: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A call of `input()`; the answer carries the same number."""

    number: int
    prompt: str


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a cell or of another request."""

    cell: int
    error: CellError | None
    cpu_time: float = 0.0
    peak_memory: int = 0
    value: str | None = None
    #: The value of the last line, if it is short.
    result: dict[str, str] | None = None
    names: dict[str, str] | None = None


Event = Piece | Display | Clear | Question | Done


def parse(message: dict[str, Any]) -> Event:
    name = message.get("event")
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        raise FrameError("unknown event type")
    event: Event = reader(message)
    return event


def _display(message: dict[str, Any]) -> Display:
    return Display(
        _texts(message, "mime"),
        _flag(message, "result"),
        _name(message, "id"),
        _flag(message, "update"),
        _number(message, "mark"),
        _flag(message, "cut"),
    )


def _parse_end(message: dict[str, Any]) -> Done:
    value = message.get("value")
    return Done(
        _number(message, "cell"),
        _error(message.get("error")),
        _figure(message.get("cpu", 0.0), _MOST_SECONDS),
        int(_figure(message.get("peak", 0), _MOST_PEAK)),
        None if value is None else _text(message, "value"),
        None if message.get("result") is None else _texts(message, "result"),
    )


def _variables(message: dict[str, Any]) -> Done:
    names = _texts(message, "names", most=1 << 20, longest=1 << 20)
    return Done(_number(message, "cell"), _error(message.get("error")), names=names)


def _error(content: object) -> CellError | None:
    if content is None:
        return None
    if not isinstance(content, dict):
        raise FrameError("error is not an object")
    return CellError(_text(content, "name"), _text(content, "message"), _text(content, "traceback"))


_READERS: dict[str, Any] = {
    "piece": lambda message: Piece(_text(message, "mime")[:_LONGEST_NAME], _text(message, "text")),
    "display": _display,
    "clear": lambda message: Clear(_number(message, "mark")),
    "input": lambda message: Question(_number(message, "ask"), _text(message, "prompt")),
    "done": _parse_end,
    "variables": _variables,
}


def _text(message: dict[str, Any], name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str):
        raise FrameError(f"{name} is not text")
    return clean(value)


def _texts(message: dict[str, Any], name: str, most: int = _MOST_TYPES, longest: int = _LONGEST_NAME) -> dict[str, str]:
    values = message.get(name)
    if not isinstance(values, dict) or len(values) > most:
        raise FrameError(f"{name} is not a short object")
    if not all(isinstance(value, str) and len(key) <= longest for key, value in values.items()):
        raise FrameError(f"{name} has values that are not text")
    return {clean(key): clean(value) for key, value in values.items()}


def _flag(message: dict[str, Any], name: str) -> bool:
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise FrameError(f"{name} is neither true nor false")
    return value


def _name(message: dict[str, Any], name: str) -> str | None:
    if message.get(name) is None:
        return None
    return _text(message, name)[:_LONGEST_NAME]


def _number(message: dict[str, Any], name: str) -> int:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise FrameError(f"{name} is not a number")
    return value


def _figure(value: Any, most: float) -> float:
    """A number, clamped to 0 and `most`."""
    if type(value) not in _FIGURES or not -1e300 < value < 1e300:  # neither is NaN
        raise FrameError("not a finite number")
    return float(value) if 0 <= value <= most else most if value > 0 else 0.0


def clean(text: str) -> str:
    """Replaces lone surrogates, which cannot be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def count_parts(text: str) -> int:
    """At least the number of values in this JSON."""
    return sum(text.count(sign) for sign in "[{,")


def content_of(mime: str, text: str, most_parts: int = MOST_PARTS) -> str | dict[str, Any]:
    """The decoded object for JSON types, if it is an object within the bounds; otherwise the text.

    NaN and infinite numbers become null, as in notebooks: JSON has none, so clients would refuse the whole answer.
    """
    if mime != "application/json" and not mime.endswith("+json"):
        return text
    if count_parts(text) > most_parts:
        return text
    try:
        content = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return text
    if not isinstance(content, dict) or not _is_shallow(content):
        return text
    return {clean(key): _clean_all(value) for key, value in content.items()}


def _is_shallow(content: object) -> bool:
    layer = [content]
    for _ in range(_DEEPEST):
        inner: list[object] = []
        for part in layer:
            inner += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        if not inner:
            return True
        layer = inner
    return False


def _clean_all(content: Any) -> Any:
    if isinstance(content, str):
        return clean(content)
    if isinstance(content, list):
        return [_clean_all(part) for part in content]
    if isinstance(content, dict):
        return {clean(key): _clean_all(part) for key, part in content.items()}
    if isinstance(content, float) and not math.isfinite(content):
        return None  # 1e999: a number by its syntax
    return content
