"""Recognises a request's `code`: a binary module, base64 of one, or WAT text. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

MAGIC = b"\0asm"
CORE_VERSION = b"\1\0\0\0"
START = "_start"
#: Small modules are often run repeatedly; larger ones are not worth keeping in memory.
_SMALL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """A module. `is_own` marks those that Warmcell ships; they may import the module `sandbox`.

    `read` returns the bytes; the files of our own modules are read only to compile them.
    """

    format: Literal["wasm", "wat", "component"]
    read: Callable[[], bytes]
    digest: str
    entry: str = START
    is_own: bool = False
    #: A harmless command line. A worker runs it once to learn which memory pages a run touches.
    rehearsal: Sequence[str] = ()
    #: Derived: its names inside a worker, without fuel and with fuel.
    loaded_names: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        name = f"{self.digest}:{self.entry}:{self.is_own:d}"
        object.__setattr__(self, "loaded_names", (f"{name}:0", f"{name}:1"))


def source_from_code(code: str | bytes) -> ModuleSource:
    """Raises `InvalidRequest` if the code is none of the three."""
    return _recognise_cached(code) if len(code) <= _SMALL_BYTES else _recognise(code)


@functools.lru_cache(maxsize=64)
def _recognise_cached(code: str | bytes) -> ModuleSource:
    return _recognise(code)


def _recognise(code: str | bytes) -> ModuleSource:
    if isinstance(code, bytes):
        return _from_bytes(code)
    text = code.strip()
    if text.startswith(("(", ";;")):
        return _make("wat", text.encode())
    return _from_bytes(_from_base64(text))


def _from_bytes(data: bytes) -> ModuleSource:
    if not data.startswith(MAGIC):
        if data.lstrip().startswith((b"(", b";;")):
            return _make("wat", data)
        raise InvalidRequest("invalid module: it does not start with the WebAssembly magic number", field="code")
    if data[4:8] != CORE_VERSION:
        raise InvalidRequest(
            "invalid module: not a core module of version 1 (components are not supported)", field="code"
        )
    return _make("wasm", data)


def _from_base64(text: str) -> bytes:
    import base64
    import binascii

    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(
            "is neither WAT text nor a base64-encoded module", field="code", hint="give the binary module as bytes"
        ) from None


def _make(form: Literal["wasm", "wat"], data: bytes) -> ModuleSource:
    import hashlib

    return ModuleSource(form, lambda: data, hashlib.sha256(form.encode() + b"\0" + data).hexdigest())
