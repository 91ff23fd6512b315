"""The protocol between the supervisor and its WASM workers: records, and how they are encoded. Standard library only.

Both sides use this file: a worker imports it as `wasm.protocol`, the supervisor as `warmcell.guest.wasm.protocol`.

A frame is two lengths, a JSON object and a blob. A run and its exit report have an empty object and a packed blob:
JSON would add a tenth to the time of a small run.
"""

from __future__ import annotations

import _json
import struct
from collections import namedtuple
from itertools import chain
from math import inf, nan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NamedTuple
else:  # `typing` takes longer to load than everything here

    class _Record(type):
        """Turns annotated names into the fields of a named tuple, as `typing.NamedTuple` does."""

        def __new__(mcs, name, bases, body):
            fields = body.get("__annotations__")
            if not fields:
                return super().__new__(mcs, name, bases, body)
            defaults = [body.pop(field) for field in fields if field in body]
            return type(name, (namedtuple(name, fields, defaults=defaults),), {"__slots__": (), **body})

    class NamedTuple(metaclass=_Record):
        pass


HEADER = struct.Struct(">II")
#: A run: the number of its spec, the number of arguments, the size of arguments and environment. Stdin follows.
_RUN = struct.Struct(">III")
#: An exit report: kind, exit code, bytes of memory, seconds of processor time. The message follows.
_EXIT = struct.Struct(">BBQd")
_EXIT_KINDS = ("exit", "trap", "timeout", "fuel", "memory", "failed")
_MOST_CPU_SECONDS = 1e9
#: What the supervisor accepts from a worker. It parses the text, so that is small; it only passes blobs on.
MAX_TEXT_BYTES = 64 << 10
MAX_BLOB_BYTES = 16 << 20


class ProtocolViolation(Exception):
    """The peer sent something that this protocol does not have."""


class RunLimits(NamedTuple):
    """What one run may use. The supervisor enforces `cpu_seconds`, the worker the rest."""

    timeout: float
    memory_bytes: int = 512 << 20
    fuel: int | None = None
    output_bytes: int = 1 << 20
    open_files: int = 1024
    file_bytes: int | None = None
    cpu_seconds: float | None = None


class GuestDirectory(NamedTuple):
    """A directory that the guest sees at `guest_path`. The worker refuses any inode but the one given here."""

    worker_path: str
    guest_path: str
    is_writable: bool
    device: int
    inode: int


class RunSpec(NamedTuple):
    """Everything about a run but its arguments, environment and input. Sent once, then referred to by number."""

    module_key: str
    limits: RunLimits
    directories: tuple[GuestDirectory, ...] = ()
    may_fetch: bool = False
    may_exec: bool = False


class ExitReport(NamedTuple):
    """How a run ended: `exit`, `trap`, `timeout`, `fuel`, `memory`, or `failed` if the worker could not run it."""

    kind: str
    exit_code: int = 0
    message: str = ""
    memory_bytes: int = 0
    cpu_seconds: float = 0.0


class _JsonSettings:
    """The attributes of `json.JSONDecoder` that the C scanner reads; `json` itself takes longer to load."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = {"-Infinity": -inf, "Infinity": inf, "NaN": nan}.__getitem__


_chunks = _json.make_encoder(None, None, _json.encode_basestring_ascii, None, ":", ",", False, False, True)
_scan = _json.make_scanner(_JsonSettings)  # type: ignore[arg-type]


def write_json(value: Any) -> bytes:
    return "".join(_chunks(value, 0)).encode()


def read_json(raw: bytes | bytearray) -> Any:
    """Like `json.loads` for UTF-8. Raises `ValueError` or `RecursionError` if `raw` is not JSON."""
    text = raw.decode("utf-8", "surrogatepass").strip(" \t\n\r")
    try:
        value, end = _scan(text, 0)
    except (StopIteration, SystemError):  # before Python 3.12 the scanner raises SystemError if `json` is not loaded
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("trailing data after the JSON value")
    return value


def encode_frame(message: dict[str, Any], blob: bytes = b"") -> bytes:
    text = write_json(message)
    return b"".join((HEADER.pack(len(text), len(blob)), text, blob))


def parse_message(text: bytes | bytearray) -> dict[str, Any]:
    """The JSON object of a frame; an empty text stands for an empty object."""
    if not text:
        return {}
    try:
        message = read_json(text)
    except (ValueError, RecursionError):
        raise ProtocolViolation("frame is not JSON") from None
    if not isinstance(message, dict):
        raise ProtocolViolation("frame is not a JSON object")
    return message


def encode_spec(number: int, spec: RunSpec) -> bytes:
    return encode_frame({"op": "spec", "number": number, "spec": spec})


def decode_spec(message: Mapping[str, Any]) -> tuple[int, RunSpec]:
    key, limits, directories, may_fetch, may_exec = message["spec"]
    shown = tuple([GuestDirectory(*directory) for directory in directories])
    return message["number"], RunSpec(key, RunLimits(*limits), shown, may_fetch, may_exec)


def encode_run(spec_number: int, argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> bytes:
    """A whole frame. The texts must not contain NUL."""
    words = "\0".join([*argv, *chain.from_iterable(env.items())]).encode()
    blob_size = _RUN.size + len(words) + len(stdin)
    return b"".join((HEADER.pack(0, blob_size), _RUN.pack(spec_number, len(argv), len(words)), words, stdin))


def decode_run(blob: bytes) -> tuple[int, list[str], dict[str, str], bytes]:
    """The number of the spec, arguments, environment, standard input."""
    number, count, size = _RUN.unpack_from(blob)
    end = _RUN.size + size
    words = blob[_RUN.size : end].decode().split("\0")
    if len(words) == count:
        return number, words, {}, blob[end:]
    return number, words[:count], dict(zip(words[count::2], words[count + 1 :: 2], strict=True)), blob[end:]


def encode_exit(report: ExitReport) -> bytes:
    """A whole frame."""
    kind, exit_code, message, memory_bytes, cpu_seconds = report
    text = message.encode("utf-8", "replace")
    packed = _EXIT.pack(_EXIT_KINDS.index(kind), exit_code, memory_bytes, cpu_seconds)
    return b"".join((HEADER.pack(0, len(packed) + len(text)), packed, text))


def decode_exit(blob: bytes) -> ExitReport:
    """Checks every field: a guest that took its worker over could send anything."""
    if not _EXIT.size <= len(blob) <= MAX_TEXT_BYTES:
        raise ProtocolViolation(f"exit report of {len(blob)} bytes")
    kind, exit_code, memory_bytes, cpu_seconds = _EXIT.unpack_from(blob)
    if kind >= len(_EXIT_KINDS) or not 0 <= cpu_seconds <= _MOST_CPU_SECONDS:  # false for NaN as well
        raise ProtocolViolation("exit report is out of range")
    return ExitReport(
        _EXIT_KINDS[kind], exit_code, blob[_EXIT.size :].decode("utf-8", "replace"), memory_bytes, cpu_seconds
    )
