"""Reads cases from files: `1.in` beside `1.out`, folders `input` and `output`, or JSON lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.types import MIB
from warmcell.judging.verdicts import Case
from warmcell.workspace.untrusted_files import open_regular, parse_json

LARGEST_FILE = 256 * MIB
_INPUT_SUFFIXES = (".in", ".input")
_OUTPUT_SUFFIXES = (".out", ".ans", ".a", ".output", ".expected")
_FOLDERS = (("input", "output"), ("inputs", "outputs"), ("in", "out"))
_HINT = "a directory with 1.in and 1.out, one with input/ and output/, or a file of JSON lines"
#: Names of the two texts of a case in JSON, the usual one first.
_STDIN_NAMES, _EXPECTED_NAMES = ("stdin", "input"), ("expected", "output", "expected_output")


def read_cases(path: str) -> list[Case]:
    """All cases at the path, in numeric order (2 before 10). Raises `InvalidRequest`."""
    try:
        cases = _from_lines(path) if os.path.isfile(path) else _from_directory(path)
    except OSError as error:
        raise _refusal(f"{error.filename or path}: {(error.strerror or str(error)).lower()}") from None
    if not cases:
        raise _refusal(f"no cases in {path!r}")
    return cases


def _from_directory(path: str) -> list[Case]:
    for given, wanted in _FOLDERS:
        folders = os.path.join(path, given), os.path.join(path, wanted)
        if all(os.path.isdir(folder) and not os.path.islink(folder) for folder in folders):
            return [_case(name, *files) for name, *files in _pairs_of_folders(*folders)]
    names = sorted(os.listdir(path), key=_numeric_order)
    pairs = [_pair(path, name, names) for name in names if name.endswith(_INPUT_SUFFIXES)]
    lines = [name for name in names if name.endswith(".jsonl")]
    if not pairs and len(lines) == 1:
        return _from_lines(os.path.join(path, lines[0]))
    return [_case(name, *files) for name, *files in pairs]


def _pair(directory: str, name: str, names: list[str]) -> tuple[str, str, str]:
    stem = os.path.splitext(name)[0]
    found = next((stem + suffix for suffix in _OUTPUT_SUFFIXES if stem + suffix in names), None)
    if found is None:
        raise _refusal(f"{name!r} has no {stem}.out beside it")
    return stem, os.path.join(directory, name), os.path.join(directory, found)


def _pairs_of_folders(given: str, wanted: str) -> Iterator[tuple[str, str, str]]:
    """Files of the same name, ignoring suffixes; `input03.txt` goes with `output03.txt`."""
    answers = {_stem(name): os.path.join(wanted, name) for name in os.listdir(wanted)}
    for name in sorted(os.listdir(given), key=_numeric_order):
        if _stem(name) not in answers:
            raise _refusal(f"{os.path.join(given, name)!r} has no counterpart in {wanted!r}")
        yield os.path.splitext(name)[0], os.path.join(given, name), answers[_stem(name)]


def _stem(name: str) -> str:
    return re.sub(r"^(input|output|in|out)[._-]?(?=.)", "", os.path.splitext(name)[0])


def _case(name: str, given: str, wanted: str) -> Case:
    return Case(_read(given), _read(wanted), name=name)


def _read(path: str) -> bytes:
    with open(open_regular(path, "cases"), "rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise _refusal(f"{path!r} has more than {LARGEST_FILE // MIB} MiB")
    return data


def _from_lines(path: str) -> list[Case]:
    cases = []
    # Not `splitlines`: JSON texts may contain U+2028 and others that it takes for ends of lines.
    for number, line in enumerate(_read(path).decode("utf-8-sig", "replace").split("\n"), 1):
        if line.strip():
            cases.append(_from_json(line, f"{path}:{number}", str(number)))
    return cases


def _from_json(line: str, place: str, name: str) -> Case:
    try:
        plain = parse_json(line)
    except ValueError as error:
        raise _refusal(f"{place}: invalid JSON: {error}") from None
    if not isinstance(plain, dict):
        raise _refusal(f"{place}: not a JSON object")
    try:
        return Case(
            _field(plain, _STDIN_NAMES, place, ""),
            _field(plain, _EXPECTED_NAMES, place),
            plain.get("timeout"),
            plain.get("memory_mb"),
            str(plain.get("name", name)),
        )
    except InvalidRequest as error:
        raise _refusal(f"{place}: {error.message}") from None


def _field(plain: dict[str, Any], names: tuple[str, ...], place: str, default: str | None = None) -> Any:
    found = [plain[name] for name in names if name in plain]
    if not found and default is None:
        raise _refusal(f"{place}: no field {names[0]!r}")
    return found[0] if found else default


def _numeric_order(name: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", name) if part]


def _refusal(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="cases", hint=_HINT)
