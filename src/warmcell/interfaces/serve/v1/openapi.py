"""`/openapi.json`: made from the routes and their models, so that it cannot say anything else than they do."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.backends.process.session_worker import LANGUAGES
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import answer
from warmcell.interfaces.serve.service import service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.living_models import SessionBody, SpawnBody
from warmcell.interfaces.serve.v1.models import BELOW
from warmcell.interfaces.serve.v1.schemas import SCHEMAS
from warmcell.languages.registry import canonical
from warmcell.lifetime.threads import in_thread

_REFUSALS = {
    "400": "The body is not JSON, or the request is not HTTP.",
    "401": "A token is needed.",
    "403": "The token has no such scope, or the request comes from elsewhere.",
    "404": "There is no such thing, or it is another tenant's.",
    "408": "The body did not come in time.",
    "409": "What it is about is busy, there already, or cannot do that.",
    "413": "The body is too large.",
    "415": "The body is of another kind.",
    "422": "A field is wrong; the message names it.",
    "429": "Your own line is full; see Retry-After.",
    "500": "The server failed.",
    "503": "Everything is taken; see Retry-After.",
}
#: Control characters but NUL can be in a name.
_FILE = BELOW.replace(r"\x00-\x1f\x7f", r"\x00")


def routes(described: list[Any]) -> list[Any]:
    async def openapi(request: Request, tenant: Tenant) -> Response:
        """This document."""
        service = service_of(request)
        languages = await in_thread(service.language_names)
        return answer(specification(described, languages, service.settings.max_timeout))

    return [door("GET", "/openapi.json", openapi, None)]


def specification(described: list[Any], languages: list[str], max_timeout: float) -> dict[str, Any]:
    """With what this host has and this server allows: a request that fits the document is carried out."""
    paths: dict[str, Any] = {}
    schemas = dict(SCHEMAS)
    for route in described:
        operation = _operation(route, schemas)
        for method in route.methods - {"HEAD"}:
            paths.setdefault(re.sub(r":\w+}", "}", route.path), {})[method.lower()] = operation
    for schema in schemas.values():
        said = schema.get("properties", {})
        if "language" in said and "code" in said:
            said["language"]["enum"] = languages
        if schema.get("title") == SessionBody.__name__:
            said["language"]["enum"] = [name for name in languages if canonical(name) in LANGUAGES]
        if "timeout" in said and schema.get("title") != SpawnBody.__name__:  # which may run until its sandbox ends
            for choice in said["timeout"].get("anyOf", [said["timeout"]]):
                choice.pop("maximum", None) and choice.update(maximum=max_timeout)
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Warmcell", "version": "1", "description": "Runs code that you did not write."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": schemes},
    }


def _operation(route: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    said = route.described
    name, *others = said.get("answers", ("Status",))
    operation: dict[str, Any] = {
        "summary": said["summary"],
        "responses": {str(said.get("status", 200)): _success(name, others)} | _refusals(said),
    }
    parameters = [_path_parameter(name, kind) for name, kind in re.findall(r"{(\w+)(:\w+)?}", route.path)]
    parameters += said.get("parameters", [])
    if parameters:
        operation["parameters"] = parameters
    if said["scope"] is not None:
        operation["security"] = [{"bearer": []}, {}]
    if "body" in said:
        media = {"schema": _model_schema(said["body"], schemas)}
        operation["requestBody"] = {"required": True, "content": {"application/json": media}}
    elif "raw_body" in said:
        operation["requestBody"] = {"required": False, "content": {"application/octet-stream": {}}}
    return operation


def _refusals(said: dict[str, Any]) -> dict[str, Any]:
    """Those that can happen here."""
    statuses = {"403", "500", "503"}
    if said["scope"] is not None:
        statuses |= {"401", "404", "409", "422", "429"}
    if "body" in said or "raw_body" in said:
        statuses |= {"400", "408", "413", "415", "422"}
    schema = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    if said["scope"] is None:
        schema = {"application/json": {}}
    return {status: {"description": _REFUSALS[status], "content": schema} for status in sorted(statuses)}


def _success(name: str, others: list[str]) -> dict[str, Any]:
    if name == "nothing":
        return {"description": "Done."}
    if name == "bytes":
        return {"description": "The content.", "content": {"application/octet-stream": {}}}
    if name == "events":
        return {"description": "Server-sent events.", "content": {"text/event-stream": {}}}
    if name == "text":
        return {"description": "The text.", "content": {"text/plain": {}}}
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    content |= {media: {} for media in others}
    return {"description": "What came of it.", "content": content}


def _path_parameter(name: str, kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if name in ("pid", "port"):
        schema = {"type": "integer", "minimum": 1}
    elif name == "path":
        schema |= {"maxLength": 4000, "pattern": _FILE}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _model_schema(model: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"$ref": f"#/components/schemas/{model.__name__}"}
