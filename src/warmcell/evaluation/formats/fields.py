"""Typed access to the fields of a record. Pure module."""

from __future__ import annotations

import json
from typing import Any

from warmcell.evaluation.json_lines import Record
from warmcell.workspace.untrusted_files import parse_json


class FieldError(ValueError):
    """A field of the record is missing or wrong."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def text(record: Record, *names: str, default: str | None = None, hint: str | None = None) -> str:
    """The first of the fields that is there."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return value
        if value is not None:
            raise FieldError(f"{name} must be text, not {type(value).__name__}")
    if default is None:
        raise FieldError(f"no field {' or '.join(map(repr, names))}", hint)
    return default


def texts(record: Record, name: str) -> list[str]:
    """A list of texts, which may itself be JSON in a text, as Hugging Face's tables have it."""
    value = record.get(name)
    if value is None:
        raise FieldError(f"no field {name!r}")
    value = from_json(value, name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FieldError(f"{name} must be a list of texts")
    return value


def from_json(value: Any, name: str) -> Any:
    """The value, parsed if it is a text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise FieldError(f"{name} is not JSON: {error}") from None


def limits(record: Record, timeout: float, memory_mb: int) -> dict[str, Any]:
    """`timeout` and `memory_mb` of the record, else these. The task checks them."""
    return {"timeout": record.get("timeout", timeout), "memory_mb": record.get("memory_mb", memory_mb)}


def call_cases_code(entry: str) -> str:
    """Python that calls `entry` with the JSON list of arguments on stdin and prints the result as JSON."""
    return (
        "\n\nimport json as _json, sys as _sys\n"
        f"_value = {entry}(*_json.loads(_sys.__stdin__.read()))\n"
        "print('\\n' + _json.dumps(_value, default=list))\n"
    )


def dump(value: Any) -> str:
    return json.dumps(value)
