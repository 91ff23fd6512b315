"""The reference of our own HTTP API, from the document that the server gives at /openapi.json."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

METHODS = ("get", "post", "put", "patch", "delete")


@cache
def _specification() -> dict[str, Any]:
    from warmcell.interfaces.serve.app import Observers, make_own_routes
    from warmcell.interfaces.serve.settings import Settings
    from warmcell.interfaces.serve.v1.openapi import specification
    from warmcell.languages.registry import language_names

    observers = Observers()
    try:
        return specification(make_own_routes(observers), list(language_names()), Settings().max_timeout)
    finally:
        observers.close()


def specification_json() -> str:
    return json.dumps(_specification(), indent=1, sort_keys=True)


def http_reference() -> str:
    document = _specification()
    lines = [
        "# HTTP",
        "",
        "Our own API. A running server describes itself at `/openapi.json`, with the languages of its host and its",
        "own limits; [this copy](openapi.json) has all languages and the default limits. [The server](../server.md)",
        "explains it, and the other APIs: E2B, SandboxFusion, Piston, MCP.",
        "",
    ]
    for path, operations in sorted(document["paths"].items()):
        for method in METHODS:
            if method in operations:
                lines += _operation(method, path, operations[method])
    lines += ["## Objects", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _object(name, schema)
    return "\n".join(lines) + "\n"


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    lines = [f"## {method.upper()} {path}".replace("{", "&#123;").replace("}", "&#125;"), "", operation["summary"], ""]
    parameters = operation.get("parameters", [])
    if parameters:
        lines += ["| parameter | in | type |", "|---|---|---|"]
        lines += [f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} |" for each in parameters] + [""]
    content = operation.get("requestBody", {}).get("content", {})
    if content:
        lines += [f"Body: {_media(content)}.", ""]
    statuses = [
        f"{status} {_media(answer.get('content', {})) if int(status) < 300 else answer['description']}".strip()
        for status, answer in sorted(operation["responses"].items())
    ]
    return [*lines, "Responses:", "", *(f"- {status}" for status in statuses), ""]


def _media(content: dict[str, Any]) -> str:
    return ", ".join(_type(media["schema"]) if media.get("schema") else f"`{name}`" for name, media in content.items())


def _object(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name} {{ #{_anchor(name)} }}", ""]
    if description := schema.get("description"):
        lines += [" ".join(description.split()), ""]
    if not schema.get("properties"):
        return [*lines, _type(schema, is_named=False), ""]
    lines += ["| field | type | meaning |", "|---|---|---|"]
    for field, kind in schema["properties"].items():
        required = " (required)" if field in schema.get("required", ()) else ""
        meaning = " ".join(kind.get("description", "").split()).replace("|", "\\|")
        lines.append(f"| `{field}`{required} | {_type(kind)} | {meaning} |")
    return [*lines, ""]


def _type(schema: Any, *, is_named: bool = True) -> str:
    """A schema in a few words, with a link where it has a name."""
    if not isinstance(schema, dict) or not schema:
        return "anything"
    if is_named and "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(map(_type, schema[choice])))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "anything")
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if words == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return words + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    names = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "maxLength": "length at most",
    }
    bounds = [f"{word} {schema[name]}" for name, word in names.items() if name in schema]
    return f" ({', '.join(bounds)})" if bounds else ""


def _anchor(name: str) -> str:
    return f"object-{name.lower()}"
