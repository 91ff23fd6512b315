"""Requests, responses and errors of the Docker Engine API, and typed fields of JSON that a client sent. No I/O."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

from warmcell.core.errors import (
    BackendBusy,
    ImageInvalid,
    ImageNotFound,
    InvalidRequest,
    PathTraversal,
    PolicyViolation,
    SandboxDestroyed,
    SandboxError,
    SessionEnded,
)
from warmcell.images.model import parse_time

_VARIABLE = re.compile(r"\{(\w+)(\*?)\}")
#: The versions of the API.
NEWEST, OLDEST = (1, 47), (1, 24)
_MAX_MESSAGE = 4000
_CALLERS_FAULT = (InvalidRequest, ImageInvalid, PolicyViolation, PathTraversal)
#: The most memory for the labels of one object. Tools keep whole configurations in them.
MAX_LABEL_BYTES = 256 << 10
#: The most memory for what a client sends for one container or `exec`. The kernel passes 2 MiB to a program.
MAX_DOCUMENT_BYTES = 4 << 20


class DockerError(Exception):
    """An error response: the status, and the text that clients show."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def refusal_of(error: SandboxError) -> DockerError:
    """Convert an error of ours to one of Docker's API."""
    if isinstance(error, ImageNotFound):
        return DockerError(404, f"No such image: {error}")
    if isinstance(error, _CALLERS_FAULT):
        return DockerError(400, str(error))
    if isinstance(error, SandboxDestroyed | SessionEnded):  # the container is being removed, or its cage has ended
        return DockerError(409, str(error))
    return DockerError(503 if isinstance(error, BackendBusy) else 500, str(error))


class Body(Protocol):
    """The body of a request as it arrives."""

    def chunks(self) -> AsyncIterator[bytes]: ...


@dataclass(slots=True)
class Request:
    """One request. `body` is the whole body unless its route streams it."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    stream: Body
    body: bytes = b""
    #: The variable parts of the path.
    names: Mapping[str, str] = field(default_factory=dict)
    #: The version of the API that the path names.
    version: tuple[int, int] = NEWEST

    def text(self, name: str, default: str = "") -> str:
        return self.query.get(name, [default])[-1]

    def flag(self, name: str, default: bool = False) -> bool:
        """Parse a boolean as Docker does: everything but these values is true."""
        if name not in self.query:
            return default
        return self.text(name).strip().lower() not in ("", "0", "no", "false", "none")

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        if not text:
            return default
        try:
            return int(text[:20])
        except ValueError:
            raise DockerError(400, f"{name}: {text[:40]!r} is not a whole number") from None

    def moment(self, name: str) -> float:
        """Parse a time (Unix seconds with a fraction, or RFC 3339) as seconds since 1970; 0 if it is not given."""
        text = self.text(name)
        try:
            moment = float(text or 0)
        except ValueError:
            found = parse_time(text)
            try:
                moment = -1.0 if found is None else found.timestamp()
            except (OverflowError, ValueError):  # a year that this host's clock does not have
                moment = -1.0
        if not 0 <= moment < 1e12:
            raise DockerError(400, f"{text[:40]!r} is not a timestamp")
        return moment

    def json(self) -> dict[str, Any]:
        """Parse the body as an object; an empty body is an empty object."""
        if not self.body.strip():
            return {}
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            raise DockerError(400, "the body is not JSON") from None
        if document is None:
            return {}
        if not isinstance(document, dict):
            raise DockerError(400, "the body is not a JSON object")
        return document

    def json_parameter(self, name: str) -> dict[str, Any]:
        """Parse a parameter as a JSON object; an empty object if it is not given."""
        try:
            document = json.loads(self.text(name) or "{}")
        except (ValueError, RecursionError):
            raise DockerError(400, f"{name}: not JSON") from None
        if not isinstance(document, dict):
            raise DockerError(400, f"{name}: not a JSON object")
        return document

    def filters(self, *known: str) -> dict[str, list[str]]:
        """Parse `filters`: names to values. An unknown one is refused: ignoring it could return too much."""
        found = {str(name): _filter_values(values) for name, values in self.json_parameter("filters").items()}
        if unknown := sorted(found.keys() - set(known)):
            raise DockerError(400, f"invalid filter {unknown[0]!r}: use {', '.join(known) or 'none'}")
        return found


def _filter_values(values: object) -> list[str]:
    """Parse the values of a filter: a list, or an object with true values, which older clients send."""
    if isinstance(values, dict):
        return [str(value) for value, is_set in values.items() if is_set]
    if isinstance(values, list):
        return [str(value) for value in values]
    raise DockerError(400, "filters: values must be lists")


def is_match(filters: Mapping[str, list[str]], name: str, is_like: Callable[[str], bool]) -> bool:
    """Whether the filter is not given or one of its values matches."""
    return name not in filters or any(is_like(value) for value in filters[name])


def has_labels(labels: Mapping[str, str], wanted: list[str]) -> bool:
    """Whether the labels have every wanted `KEY` and `KEY=VALUE`."""
    pairs = [text.partition("=") for text in wanted]
    return all(key in labels and (not equals or labels[key] == value) for key, equals, value in pairs)


@dataclass(slots=True)
class Response:
    """A response with its whole body, or one that streams: `chunks` in place of `body`."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    chunks: AsyncIterator[bytes] | None = None
    #: How long a client may read nothing while the stream has more for it. None: without limit.
    stall_seconds: float | None = None


class RawStream(Protocol):
    """The connection of a client after the head of the response."""

    async def read(self) -> bytes:
        """Read what the client sent; empty at its end."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def wait_for_hangup(self) -> bool:
        """Wait until the client has closed both directions; return True."""


@dataclass(slots=True)
class Hijack:
    """The connection becomes a raw stream in both directions, which ends with `run`."""

    run: Callable[[RawStream], Awaitable[None]]
    content_type: str
    #: Called in place of `run` if the client disconnects before it.
    on_disconnect: Callable[[], object] = lambda: None


Answer = Response | Hijack
#: None: an empty body, with the status 204.
Handler = Callable[[Request], Awaitable[Answer | None]]


@dataclass(frozen=True)
class Route:
    """`{name}` is one part of the path, `{name*}` several: names of images have slashes."""

    method: str
    path: str
    handler: Handler
    #: The handler reads the body itself, as it arrives.
    is_streamed: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(_VARIABLE.sub(lambda found: f"(?P<{found[1]}>{'.+' if found[2] else '[^/]+'})", self.path))


def json_response(document: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(document).encode() + b"\n", {"content-type": "application/json"})


def json_line(document: Any) -> bytes:
    """One message of a stream of JSON."""
    return json.dumps(document).encode() + b"\r\n"


def error_response(error: DockerError) -> Response:
    message = error.message[:_MAX_MESSAGE].encode("utf-8", "replace").decode()
    return json_response({"message": message}, error.status)


# ---- fields of JSON objects: a wrong type is refused, and the field named ----


def memory_of(document: object, most: int = MAX_DOCUMENT_BYTES) -> int:
    """How many bytes a JSON value takes in memory. Stops counting above `most`."""
    total, waiting = 0, [document]
    while waiting and total <= most:
        value = waiting.pop()
        total += sys.getsizeof(value)
        if isinstance(value, dict):
            waiting += value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return total


def check_size(document: Mapping[str, Any], what: str) -> int:
    """Return the bytes that the object takes in memory. Raises `DockerError` for too many."""
    size = memory_of(document)
    if size > MAX_DOCUMENT_BYTES:
        reason = f"takes more than {MAX_DOCUMENT_BYTES >> 20} MiB of memory"
        raise DockerError(400, f"the description of {what} {reason}; copy large data into the container as files")
    return size


def object_field(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name) or {}
    if not isinstance(value, dict):
        raise DockerError(400, f"{name}: not an object")
    return value


def _is_text(value: object) -> TypeGuard[str]:
    """Whether a program can be given it: without NUL, and without lone surrogates but those of undecoded bytes."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def text_field(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not _is_text(value):
        raise DockerError(400, f"{name}: not a string")
    return value


def texts_field(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = document.get(name) or []
    if not isinstance(value, list) or not all(map(_is_text, value)):
        raise DockerError(400, f"{name}: not a list of strings")
    return tuple(value)


def objects_field(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = document.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DockerError(400, f"{name}: not a list of objects")
    return value


def refuse_unknown(document: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Refuse unknown options: ignoring one would silently give a client something else than it asked for."""
    for name, value in document.items():
        if value and name not in known:
            raise DockerError(400, f"{what}.{name[:80]} is not supported: unknown option")


def labels_field(document: Mapping[str, Any]) -> dict[str, str]:
    labels = object_field(document, "Labels")
    if memory_of(labels, MAX_LABEL_BYTES) > MAX_LABEL_BYTES:
        raise DockerError(400, f"Labels: take more than {MAX_LABEL_BYTES >> 10} KiB of memory")
    if not all(isinstance(value, str) for value in labels.values()):
        raise DockerError(400, "Labels: the values are not strings")
    return labels


def whole_field(document: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        raise DockerError(400, f"{name}: not a whole number")
    return value
