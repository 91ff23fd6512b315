"""Checks what a model sent against the schema of a tool. Pure module."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.lines import one_line
from warmcell.languages.registry import lookup_language

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "a string"),
    "integer": ((int, float), "a whole number"),
    "boolean": ((bool,), "true or false"),
}


def as_mapping(args: object) -> Mapping[str, Any]:
    """The arguments as an object; some models send them as JSON text."""
    if isinstance(args, str):
        try:
            args = json.loads(args or "{}")
        except (ValueError, RecursionError):
            raise InvalidRequest("are not valid JSON", field="arguments") from None
    if not isinstance(args, Mapping):
        raise InvalidRequest(f"must be an object, not {type(args).__name__}", field="arguments")
    return args


def check_arguments(schema: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the schema has, with types and ranges checked and defaults filled in."""
    known: dict[str, Any] = {}
    for name, rule in schema["properties"].items():
        value = args.get(name)
        if value is None:
            if name in schema["required"]:
                raise InvalidRequest("is required", field=name)
            known[name] = rule.get("default")
        else:
            known[name] = _check_value(name, value, rule)
    return known


def list_ignored(schema: Mapping[str, Any], args: object) -> dict[str, Any]:
    """Names the arguments that a tool does not have, so that a model learns that they had no effect."""
    if not isinstance(args, Mapping):
        return {}
    unknown = [one_line(key[:40]) for key in args if isinstance(key, str) and key not in schema["properties"]]
    return {"ignored_arguments": unknown[:10]} if unknown else {}


def _check_value(name: str, value: Any, rule: Mapping[str, Any]) -> Any:
    kinds, words = _KINDS[rule["type"]]
    if not issubclass(type(value), kinds) or (type(value) is bool and bool not in kinds):
        raise InvalidRequest(f"must be {words}, not {type(value).__name__}", field=name)
    if rule["type"] == "integer":
        return _whole(name, value, rule)
    return _language(name, value, rule["enum"]) if "enum" in rule else value


def _language(name: str, value: str, offered: Sequence[str]) -> str:
    """A language that is offered, by any of its names."""
    row = lookup_language(value)
    wanted = row.name if row is not None else value.lower()
    if wanted in offered:
        return wanted
    what = (
        f"unknown language {one_line(value[:40])!r}" if row is None else f"{wanted} is not available here: {row.remedy}"
    )
    raise InvalidRequest(what, field=name, hint=f"one of {', '.join(offered)}")


def _whole(name: str, value: float, rule: Mapping[str, Any]) -> int:
    """The range is checked first: an integer of 5,000 digits can neither become a float nor be printed."""
    if not rule["minimum"] <= value <= rule["maximum"]:
        shown = "not a number" if isinstance(value, float) and math.isnan(value) else "out of range"
        raise InvalidRequest(f"must be from {rule['minimum']} to {rule['maximum']} ({shown})", field=name)
    if value != int(value):
        raise InvalidRequest("must be a whole number", field=name)
    return int(value)
