"""`/openapi.json`, generated from the routes, their models, and the JSON schemas of responses."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from warmcell.backends.process.session_worker import LANGUAGES
from warmcell.core.types import Connection, Denial, EffectiveLimits, Enforced, EnforcedLimits, Usage
from warmcell.interfaces.serve.responses import json_response
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import BELOW_IN_URL, SessionBody
from warmcell.interfaces.serve.v1.processes import SpawnBody
from warmcell.languages.registry import canonical
from warmcell.lifetime.threads import in_thread
from warmcell.observe.activity import ActiveRun
from warmcell.sandbox.interface import ProcessInfo
from warmcell.workspace.diff import FsChange
from warmcell.workspace.files import DirEntry, FileStat

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


def _object(needed: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": needed | (optional or {}), "required": list(needed)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT, _NUMBER, _WHOLE, _BOOL = ({"type": name} for name in ("string", "number", "integer", "boolean"))
_MAYBE_TEXT, _MAYBE_NUMBER, _MAYBE_WHOLE = ({"type": [name, "null"]} for name in ("string", "number", "integer"))
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
#: By the annotation of a field.
_TYPES: dict[str, dict[str, Any]] = {"str": _TEXT, "float": _NUMBER, "int": _WHOLE, "bool": _BOOL}
_TYPES |= {"str | None": _MAYBE_TEXT, "float | None": _MAYBE_NUMBER, "int | None": _MAYBE_WHOLE}


def _record(kind: type, /, **others: dict[str, Any]) -> dict[str, Any]:
    """The schema of a record as `asdict` writes it. `others` are fields whose schema differs from their type's."""
    return _object({name: others.get(name) or _TYPES[hint] for name, hint in kind.__annotations__.items()})


_RESULT: dict[str, Any] = {
    "stdout": _TEXT,
    "stderr": _TEXT,
    "exit_code": _WHOLE,
    "signal": _MAYBE_WHOLE,
    "duration": _NUMBER,
    "stdout_truncated": _BOOL,
    "stderr_truncated": _BOOL,
    "usage": _ref("Usage"),
    "enforced": _ref("Enforced"),
    "outputs": _list({"type": "object"}),
    "denials": _list(_ref("Denial")),
    "queued": _NUMBER,
    "files": _TEXTS,
}
#: Fields that are present only if they are not empty.
_OPTIONAL = {"stdout_base64": _TEXT, "stderr_base64": _TEXT, "connections": _ref("Connections")}
_ENDS = ["success", "timeout", "memory_exceeded", "ended", "error"]
_VERDICTS = ["accepted", "wrong_answer", "time_limit", "memory_limit", "output_limit", "runtime_error"]
_ENTRY = _record(DirEntry)
_CHANGE_KIND, _CHANGED_ENTRY = ["created", "modified", "deleted"], ["file", "symlink", "other", "closed"]
_USAGE_COLUMNS = (
    *("requests", "runs", "cpu_seconds", "memory_gib_seconds", "wall_seconds"),
    *("egress_sent_bytes", "egress_received_bytes", "stored_bytes"),
)
_VERDICT = {"enum": [*_VERDICTS, "build_error", "host_error"]}

_JOB = {"id": _TEXT, "created": _NUMBER, "is_running": _BOOL}

SCHEMAS: dict[str, Any] = {
    "Status": _object({"status": _TEXT}),
    "Error": _object(
        {
            "code": _TEXT,
            "message": _TEXT,
            "hint": _MAYBE_TEXT,
            "fault": {"enum": ["guest", "caller", "host"]},
            "retryable": _BOOL,
        },
        {"details": {"type": "object"}},
    ),
    "Refusal": _object({"error": _ref("Error")}),
    "Usage": _record(Usage),
    "Enforced": _object(dict.fromkeys(Enforced.__slots__, _MAYBE_TEXT)),
    "Denial": _record(Denial),
    "ExecResult": _object(_RESULT, _OPTIONAL),
    "Result": _object({"status": {"enum": _ENDS}}, _RESULT | _OPTIONAL | {"error": _ref("Error")}),
    "Waited": _object({"status": {"enum": [*_ENDS, "running"]}}, _RESULT | _OPTIONAL | {"error": _ref("Error")}),
    "Verdict": _object(
        {
            "status": _VERDICT,
            "time": _NUMBER,
            "cpu_time": _NUMBER,
            "memory_bytes": _WHOLE,
            "result": {"anyOf": [_ref("ExecResult"), {"type": "null"}]},
            "error": {"anyOf": [_ref("Error"), {"type": "null"}]},
        }
    ),
    "Judged": _object({"status": _VERDICT, "accepted": _WHOLE, "total": _WHOLE, "verdicts": _list(_ref("Verdict"))}),
    "Sandbox": _object(
        {
            "id": _TEXT,
            "created": _NUMBER,
            "expires": _NUMBER,
            "timeout": _NUMBER,
            "metadata": _TEXTS,
            "limits": _object(dict.fromkeys(EffectiveLimits.__slots__, _MAYBE_NUMBER)),
        }
    ),
    "Token": _object({"token": _TEXT}),
    "Identity": _object(
        {"id": _TEXT, "name": _TEXT, "scopes": _list(_TEXT), "requires_token": _BOOL, "has_audit": _BOOL}
    ),
    "Audit": _object({"records": _list({"type": "object"})}),
    "BackgroundRun": _object(_JOB | {"language": _TEXT}),
    "BackgroundRuns": _list(_ref("BackgroundRun")),
    "BackgroundCell": _object(_JOB),
    "BackgroundCells": _list(_ref("BackgroundCell")),
    "History": _object(
        {
            "began": _NUMBER,
            "step": _WHOLE,
            "sandboxes": _WHOLE,
            "queue": _WHOLE,
            "steps": _list(
                _object(
                    {"time": _WHOLE, "outcomes": {"type": "object", "additionalProperties": _WHOLE}}
                    | dict.fromkeys(("p50", "p95"), _MAYBE_NUMBER)
                    | dict.fromkeys(("memory", "running", "waiting", "resident"), _WHOLE)
                )
            ),
        }
    ),
    "Sandboxes": _list(_ref("Sandbox")),
    "Entries": _list(_ENTRY),
    "Tree": _list(_object(_ENTRY["properties"] | {"path": _TEXT})),
    "FileStat": _record(FileStat),
    "Changes": _list(_record(FsChange, kind={"enum": _CHANGE_KIND}, entry={"enum": _CHANGED_ENTRY})),
    "Uploaded": _object({"files": _WHOLE, "total_bytes": _WHOLE, "skipped": _list(_TEXT)}),
    "Names": _list(_TEXT),
    "Connections": _list(_record(Connection)),
    "Process": _record(ProcessInfo),
    "Processes": _list(_ref("Process")),
    "Session": _object({"id": _TEXT, "language": _TEXT}),
    "Sessions": _list(_ref("Session")),
    "Cell": _object({"status": {"enum": _ENDS}}, dict.fromkeys(("stdout", "stderr"), _TEXT) | {"outputs": _list({})}),
    "Variables": _TEXTS,
    "Interrupted": _object({"interrupted": {"type": "boolean"}}),
    "Branch": _object({"sandbox": _ref("Sandbox"), "session": _ref("Session")}),
    "Usages": _object(
        {"usage": _list(_object({"tenant": _TEXT, "sandbox": _TEXT} | dict.fromkeys(_USAGE_COLUMNS, _NUMBER)))}
    ),
    "Port": _object({"port": _WHOLE, "host_port": _WHOLE, "url": _TEXT}),
    "Ports": _list(_ref("Port")),
    "Snapshot": _object({"id": _TEXT, "skipped": _list(_TEXT)}),
    "Activity": _object(
        {
            "runs": _list(_record(ActiveRun, state={"enum": ["waiting", "running"]})),
            "sandboxes": _list(
                _object({"id": _TEXT, "tenant": _TEXT, "backend": _TEXT, "seconds": _NUMBER}, {"node": _TEXT})
            ),
        },
        {"nodes": _list(_object({"id": _TEXT, "address": _TEXT, "reason": _TEXT, "running": _WHOLE}))},
    ),
    "Capabilities": _object(
        {
            "languages": _list(_TEXT),
            "versions": _TEXTS,
            "isolation_class": _TEXT,
            "enforced_limits": _object(dict.fromkeys(EnforcedLimits.__slots__, _BOOL)),
            "network": _list(_TEXT),
        }
    ),
    "Report": _object(
        {
            "default_available": _BOOL,
            "rows": _list(
                _object(
                    {"name": _TEXT, "status": _TEXT},
                    {"mechanism": _MAYBE_TEXT, "proof": _MAYBE_TEXT, "remedy": _MAYBE_TEXT},
                )
            ),
        }
    ),
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
        description = schema.get("properties", {})
        if "language" in description and "code" in description:
            description["language"]["enum"] = languages
        if schema.get("title") == SessionBody.__name__:
            description["language"]["enum"] = [name for name in languages if canonical(name) in LANGUAGES]
        if (
            "timeout" in description and schema.get("title") != SpawnBody.__name__
        ):  # a process may run as long as its sandbox
            for choice in description["timeout"].get("anyOf", [description["timeout"]]):
                choice.pop("maximum", None) and choice.update(maximum=max_timeout)
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Warmcell", "version": "1", "description": "Runs code that you did not write."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": schemes},
    }


def _operation(route: Any) -> dict[str, Any]:
    description = route.description
    name, *others = description.get("answers", ("Status",))
    operation: dict[str, Any] = {
        "summary": description["summary"],
        "responses": {str(description.get("status", 200)): _success(name, others)} | _errors(description),
    }
    parameters = [_path_parameter(name) for name in re.findall(r"{(\w+)(?::\w+)?}", route.path)]
    parameters += description.get("parameters", [])
    if parameters:
        operation["parameters"] = parameters
    if description["scope"] is not None:
        operation["security"] = [{"bearer": []}, {}]
    if "body" in description:
        media = {"schema": {"$ref": f"#/components/schemas/{description['body'].__name__}"}}
        operation["requestBody"] = {"required": True, "content": {"application/json": media}}
    elif "raw_body" in description:
        operation["requestBody"] = {"required": False, "content": {"application/octet-stream": {}}}
    return operation


def _errors(description: dict[str, Any]) -> dict[str, Any]:
    """The error responses of a route."""
    statuses = {"403", "500", "503"}
    if description["scope"] is not None:
        statuses |= {"401", "404", "409", "422", "429"}
    if "parameters" in description:
        statuses |= {"401", "422"}
    if "body" in description or "raw_body" in description:
        statuses |= {"400", "408", "413", "415", "422"}
    schema = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    if description["scope"] is None:
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
    """The schemas of request bodies. Cached, because pydantic takes a third of a second."""
    template = "#/components/schemas/{model}"
    found: dict[str, Any] = models_json_schema([(body, "validation") for body in bodies], ref_template=template)[1]
    return dict(found["$defs"])
