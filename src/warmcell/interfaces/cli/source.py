"""The program that `warmcell run` was given: language, code and stdin."""

from __future__ import annotations

import os
import select
import sys
import time

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass
from warmcell.core.types import MAX_CODE_BYTES, Language
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.messages import say_warning
from warmcell.languages.registry import all_rows, find_built_in, find_language, language_of_file
from warmcell.languages.row import LanguageRow

MAX_STDIN_BYTES = 256 * 1024 * 1024
SILENCE = 3.0


@dataclass(frozen=True, slots=True)
class Source:
    """The program: `inline` code, a file at `path`, or stdin if both are None."""

    language: LanguageRow
    inline: str | None = None
    path: str | None = None


def choose(target: str, source: str | None, inline: str | None, naming: str | None = None) -> Source:
    """Interpret the arguments. A single word that is not a built-in language may be a file.

    `naming` tells, in a hint, how to name the language of a file; by default as in `warmcell run`.
    """
    is_named = inline is not None or source is not None
    if inline is not None and source is not None:
        raise UsageError(f"-c and {source!r} cannot be combined", "give one program")
    language = find_built_in(target)
    if language is None and not is_named:
        return _file_or_installed(target, naming or f"name it, as in 'warmcell run python {target}'")
    if language is None:
        language = _find_installed(target)
    return Source(language, inline, None if source in (None, "-") else source)


def _file_or_installed(target: str, naming: str) -> Source:
    language = language_of_file(target)
    if language is not None:
        return Source(language, path=target)
    if "/" not in target and not os.path.splitext(target)[1] and not os.path.exists(target):
        return Source(_find_installed(target))
    known = " ".join(suffix for row in all_rows() for suffix in row.suffixes)
    raise UsageError(f"cannot infer the language of {target!r} from its name", f"{naming}, or use one of {known}")


def _find_installed(name: str) -> LanguageRow:
    """Find a language of another package. Done last, because it is slow."""
    try:
        return find_language(name)
    except InvalidRequest as error:
        raise UsageError(f"unknown language {name[:80]!r}", _nearest(name) or error.hint) from None


def _nearest(name: str) -> str | None:
    from difflib import get_close_matches

    known = [str(word) for row in all_rows() for word in (row.name, *row.aliases)]
    close = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else None


def read_code(source: Source) -> str | bytes:
    """Read the program: text, or bytes for a binary WebAssembly module."""
    if source.inline is not None:
        return source.inline
    if source.path is None:
        if sys.stdin is None:
            raise UsageError("stdin is closed", "give the program with -c or as a file")
        if not (data := sys.stdin.buffer.read(MAX_CODE_BYTES + 1)):
            raise UsageError("stdin is empty", "give the program with -c or as a file")
        return _decode_code(data, source, "stdin")
    try:
        with open(source.path, "rb") as file:
            data = file.read(MAX_CODE_BYTES + 1)
    except OSError as error:
        hint = "a program on the command line needs -c" if set(source.path) & set(" (;=") else None
        raise UsageError(f"cannot read {source.path!r}: {(error.strerror or str(error)).lower()}", hint) from None
    return _decode_code(data, source, source.path)


def _decode_code(data: bytes, source: Source, name: str) -> str | bytes:
    if source.language.name == Language.WASM and data.startswith(b"\0asm"):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{name!r} is not UTF-8 text", "convert it to UTF-8") from None


def guest_stdin(source: Source) -> int:
    """The guest's stdin: ours, unless it is a terminal or had the program (-1)."""
    had_program = source.inline is None and source.path is None
    if had_program or sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return -1
    return sys.stdin.fileno()


def read_guest_stdin(source: Source, patience: float) -> bytes | None:
    """Read our stdin for the guest, unless it is a terminal or had the program.

    Programs that start us often leave an open pipe to which they never write. If nothing arrives within `SILENCE`
    seconds, warn and treat it as empty; after the first byte, wait up to `patience` seconds for the end.
    """
    descriptor = guest_stdin(source)
    if descriptor < 0:
        return None
    if not _is_readable(descriptor, min(SILENCE, patience)):
        say_warning("no data on stdin; the program reads end of file", "add '< /dev/null', or write sooner")
        return None
    return _read_until_end(descriptor, patience)


def _is_readable(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], max(0.0, seconds))[0])


def _read_until_end(descriptor: int, patience: float) -> bytes:
    deadline = time.monotonic() + patience
    received = bytearray()
    while len(received) <= MAX_STDIN_BYTES:
        if not _is_readable(descriptor, deadline - time.monotonic()):
            raise UsageError("timed out reading stdin", "close it, or raise --timeout")
        piece = os.read(descriptor, 1 << 20)
        if not piece:
            return bytes(received)
        received += piece
    raise UsageError(f"stdin is larger than {MAX_STDIN_BYTES} bytes", "pass the data as a file")
