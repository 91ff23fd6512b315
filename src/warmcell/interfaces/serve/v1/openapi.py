"""`/openapi.json`, generated from the routes and their models."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from warmcell.backends.process.session_worker import LANGUAGES
from warmcell.interfaces.serve.responses import json_response
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import BELOW_IN_URL
from warmcell.interfaces.serve.v1.sandbox_models import SessionBody, SpawnBody
from warmcell.interfaces.serve.v1.schemas import SCHEMAS
from warmcell.languages.registry import canonical
from warmcell.lifetime.threads import in_thread

_ERRORS = {
    "400": "The body is not JSON, or the request is not HTTP.",
    "401": "A token is needed.",
    "403": "The token does not have the scope, or the request is cross-origin.",
    "404": "Not found, or it belongs to another tenant.",
    "408": "The body did not arrive in time.",
    "409": "The object is busy, exists already, or does not support this.",
    "413": "The body is too large.",
    "415": "The body has the wrong media type.",
    "422": "A field is invalid; the message names it.",
    "429": "A quota of the token is used up; see Retry-After.",
    "500": "Internal server error.",
    "503": "The server is busy or shutting down; see Retry-After.",
}


def routes(described: list[Any]) -> list[Any]:
    async def openapi(request: Request, tenant: Tenant) -> Response:
        """This document."""
        service = get_service(request)
        languages = await in_thread(service.language_names)
        return json_response(await in_thread(lambda: specification(described, languages, service.settings.max_timeout)))

    return [route("GET", "/openapi.json", openapi, None)]


def specification(described: list[Any], languages: list[str], max_timeout: float) -> dict[str, Any]:
    """Build the document with the languages of this host and the limits of this server."""
    paths: dict[str, Any] = {}
    bodies = dict.fromkeys(each.description["body"] for each in described if "body" in each.description)
    schemas = copy.deepcopy(SCHEMAS | _body_schemas(tuple(bodies)))
    for each in described:
        operation = _operation(each)
        for method in each.methods - {"HEAD"}:
            paths.setdefault(re.sub(r":\w+}", "}", each.path), {})[method.lower()] = operation
    for schema in schemas.values():
        said = schema.get("properties", {})
        if "language" in said and "code" in said:
            said["language"]["enum"] = languages
        if schema.get("title") == SessionBody.__name__:
            said["language"]["enum"] = [name for name in languages if canonical(name) in LANGUAGES]
        if "timeout" in said and schema.get("title") != SpawnBody.__name__:  # a process may run as long as its sandbox
            for choice in said["timeout"].get("anyOf", [said["timeout"]]):
                choice.pop("maximum", None) and choice.update(maximum=max_timeout)
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Warmcell", "version": "1", "description": "Runs code that you did not write."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": schemes},
    }


def _operation(route: Any) -> dict[str, Any]:
    said = route.description
    name, *others = said.get("answers", ("Status",))
    operation: dict[str, Any] = {
        "summary": said["summary"],
        "responses": {str(said.get("status", 200)): _success(name, others)} | _errors(said),
    }
    parameters = [_path_parameter(name) for name in re.findall(r"{(\w+)(?::\w+)?}", route.path)]
    parameters += said.get("parameters", [])
    if parameters:
        operation["parameters"] = parameters
    if said["scope"] is not None:
        operation["security"] = [{"bearer": []}, {}]
    if "body" in said:
        media = {"schema": {"$ref": f"#/components/schemas/{said['body'].__name__}"}}
        operation["requestBody"] = {"required": True, "content": {"application/json": media}}
    elif "raw_body" in said:
        operation["requestBody"] = {"required": False, "content": {"application/octet-stream": {}}}
    return operation


def _errors(said: dict[str, Any]) -> dict[str, Any]:
    """The error responses of a route."""
    statuses = {"403", "500", "503"}
    if said["scope"] is not None:
        statuses |= {"401", "404", "409", "422", "429"}
    if "parameters" in said:
        statuses |= {"401", "422"}
    if "body" in said or "raw_body" in said:
        statuses |= {"400", "408", "413", "415", "422"}
    schema = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    if said["scope"] is None:
        schema = {"application/json": {}}
    return {status: {"description": _ERRORS[status], "content": schema} for status in sorted(statuses)}


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
    return {"description": "The result.", "content": content}


def _path_parameter(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if name in ("pid", "port"):
        schema = {"type": "integer", "minimum": 1}
    elif name == "path":
        schema |= {"maxLength": 4000, "pattern": BELOW_IN_URL}
    return {"name": name, "in": "path", "required": True, "schema": schema}


@cache
def _body_schemas(bodies: tuple[Any, ...]) -> dict[str, Any]:
    """Cached, because pydantic takes a third of a second."""
    template = "#/components/schemas/{model}"
    found: dict[str, Any] = models_json_schema([(body, "validation") for body in bodies], ref_template=template)[1]
    return dict(found["$defs"])
