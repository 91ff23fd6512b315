"""Records as JSON and TOML text with camelCase keys. Errors name the field and, if known, the line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from warmcell.core.errors import InvalidRequest, PolicyViolation, SandboxError
from warmcell.core.records import dataclass

MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The type of a record, and which of its fields are records or lists of records.

    Errors use `name` for the text. `check` is called last, with the finished record.
    """

    name: str
    kind: Any
    records: Mapping[str, Any]
    record_lists: Mapping[str, Any]
    check: Callable[[Any], None]


class _Misplaced(Exception):
    """An error at `where`: a key, or a key of a key (`allowedPaths[1].mode`)."""

    def __init__(self, where: str, error: SandboxError) -> None:
        super().__init__(where)
        self.where, self.error = where, error


def to_json(record: Any) -> str:
    import json

    return json.dumps(_to_plain(record), ensure_ascii=False)


def from_json(schema: RecordSchema, text: str | bytes) -> Any:
    return _read(schema, _parse_json, text, "")


def from_file(schema: RecordSchema, path: str | os.PathLike[str]) -> Any:
    """Read a JSON or TOML file, by its suffix."""
    name = os.fspath(path)
    parse = {".json": _parse_json, ".toml": _parse_toml}.get(os.path.splitext(name)[1].lower())
    if parse is None:
        hint = "name it .toml or .json"
        raise InvalidRequest(f"unknown file type: {name!r}", field=schema.name, hint=hint)
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(f"cannot read {name!r}: {reason.lower()}", field=schema.name) from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{name!r} is larger than {MAX_FILE_BYTES} bytes", field=schema.name)
    return _read(schema, parse, data, f"{name!r}: ")


def _parse_json(text: str) -> Any:
    import json

    return json.loads(text, object_pairs_hook=_without_repeats)


def _parse_toml(text: str) -> Any:
    import tomllib

    return tomllib.loads(text)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys: parsers differ on which one counts, and a policy must be unambiguous."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {key[:40]!r}")
        found[key] = value
    return found


def _read(schema: RecordSchema, parse: Callable[[str], Any], source: str | bytes, origin: str) -> Any:
    try:
        text = source if isinstance(source, str) else source.decode("utf-8")
        data = parse(text)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if parse is _parse_toml else "JSON"
        raise InvalidRequest(f"{origin}not {kind}: {error}", field=schema.name) from None
    try:
        return _build(schema, data)
    except _Misplaced as misplaced:
        raise _add_location(misplaced, schema.name, text, origin) from None


def _add_location(misplaced: _Misplaced, name: str, text: str, origin: str) -> SandboxError:
    """Add the field to the error, and the line if its key occurs only once in the text."""
    error, where = misplaced.error, misplaced.where or name
    line = _line_of(misplaced.where, text)
    place = f"{origin}{f'line {line}: ' if line else ''}{where}: "
    if not isinstance(error, InvalidRequest):
        return PolicyViolation(place + error.message, hint=error.hint)
    located = InvalidRequest(place + error.message.removeprefix(f"{error.field}: "), hint=error.hint)
    located.field = where
    return located


def _line_of(where: str, text: str) -> int | None:
    key = re.sub(r"\[\d+\]$", "", where).rpartition(".")[2]
    found = [match.start() for match in re.finditer(rf"(?<![\w-]){re.escape(key)}(?![\w-])", text)] if key else []
    return text.count("\n", 0, found[0]) + 1 if len(found) == 1 else None


def _build(schema: RecordSchema, data: Any) -> Any:
    fields = _fields(schema.kind, data, "")
    for name, kind in schema.record_lists.items():
        if name in fields:
            items = enumerate(_list(fields[name], _camel(name)))
            fields[name] = tuple(_record(kind, item, f"{_camel(name)}[{index}]") for index, item in items)
    for name, kind in schema.records.items():
        if fields.get(name) is not None:
            fields[name] = _record(kind, fields[name], _camel(name))
    record = _construct(schema.kind, fields, "")
    try:
        schema.check(record)
    except SandboxError as error:
        raise _Misplaced("", error) from None
    return record


def _record(kind: Any, data: Any, where: str) -> Any:
    return _construct(kind, _fields(kind, data, where), where)


def _construct(kind: Any, fields: Mapping[str, Any], where: str) -> Any:
    """Create the record. An error that names one of its fields is reported with the key of that field."""
    try:
        return kind(**fields)
    except TypeError as error:
        missing = re.search(r"missing .*'(\w+)'", str(error))
        if missing is None:
            raise
        raise _Misplaced(f"{where}.{_camel(missing[1])}", InvalidRequest("is required")) from None
    except SandboxError as error:
        named = re.match(r"\w+", error.field or "") if isinstance(error, InvalidRequest) else None
        key = _camel(named[0]) if named else ""
        raise _Misplaced(".".join(part for part in (where, key) if part), error) from None


def _fields(kind: Any, data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _Misplaced(where, InvalidRequest(f"expected an object, not {type(data).__name__}"))
    names = {_camel(name): name for name in kind.__slots__}
    unknown = next((key for key in data if key not in names), None)
    if unknown is not None:
        key = f"{where}.{unknown[:40]}" if where else unknown[:40]
        raise _Misplaced(key, InvalidRequest("unknown key", hint=f"one of {', '.join(names)}"))
    return {names[key]: value for key, value in data.items()}


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Misplaced(where, InvalidRequest(f"expected a list, not {type(value).__name__}"))
    return value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _to_plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {_camel(name): _to_plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
