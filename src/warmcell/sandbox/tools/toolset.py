"""`sandbox.tools()`: plain callables with JSON schemas, in the forms that model providers take."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Literal

from warmcell.core.errors import InvalidRequest
from warmcell.core.lines import one_line
from warmcell.languages.registry import lookup_language
from warmcell.sandbox.tools.answers import MAX_TEXT, failure
from warmcell.sandbox.tools.calls import Calls, OnOutput, ToolSandbox
from warmcell.sandbox.tools.definitions import MAX_TIMEOUT, Definition, make_definitions
from warmcell.workspace.errors import PatchRejected

#: Takes a tool's name, its arguments and optionally `on_output`; returns its answer, or an awaitable of it.
Call = Callable[..., Any]
_TYPES = {"string": str, "integer": int, "boolean": bool}
_RUNS = ("run_code", "run_command")
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


def list_ignored(known: Container[str], args: object) -> dict[str, Any]:
    """Names the arguments that a tool does not have, so that a model learns that they had no effect."""
    if not isinstance(args, Mapping):
        return {}
    unknown = [one_line(key[:40]) for key in args if isinstance(key, str) and key not in known]
    return {"ignored_arguments": unknown[:10]} if unknown else {}


def _check_value(name: str, value: Any, rule: Mapping[str, Any]) -> Any:
    kinds, words = _KINDS[rule["type"]]
    if not issubclass(type(value), kinds) or (type(value) is bool and bool not in kinds):
        raise InvalidRequest(f"must be {words}, not {type(value).__name__}", field=name)
    if rule["type"] == "integer":
        return _whole(name, value, rule)
    return check_language(name, value, rule["enum"]) if "enum" in rule else value


def check_language(name: str, value: str, offered: Sequence[str]) -> str:
    """A language that is offered, by any of its names."""
    row = lookup_language(value)
    wanted = row.name if row is not None else value.lower()
    if wanted in offered:
        return wanted
    what = f"unknown language {one_line(value[:40])!r}" if row is None else f"{wanted} cannot be run here: {row.remedy}"
    raise InvalidRequest(what, field=name, hint=f"one of {', '.join(offered)}")


def _whole(name: str, value: float, rule: Mapping[str, Any]) -> int:
    """The range is checked first: an integer of 5,000 digits can neither become a float nor be printed."""
    if not rule["minimum"] <= value <= rule["maximum"]:
        shown = "not a number" if isinstance(value, float) and math.isnan(value) else "out of range"
        raise InvalidRequest(f"must be from {rule['minimum']} to {rule['maximum']} ({shown})", field=name)
    if value != int(value):
        raise InvalidRequest("must be a whole number", field=name)
    return int(value)


class Tool:
    """One tool. Calling it returns its answer (for `AsyncSandbox`: an awaitable) and raises for nothing that a model
    can send. Its signature is that of the schema, for frameworks that inspect it.
    """

    def __init__(self, definition: Definition, call: Call, is_async: bool) -> None:
        self.definition = definition
        self.name = self.__name__ = self.__qualname__ = definition.name
        self.description = self.__doc__ = definition.description
        self.parameters = dict(definition.parameters)
        self.is_async = is_async
        self._call = call
        self.__signature__ = _signature(definition)
        self.__annotations__ = {name: item.annotation for name, item in self.__signature__.parameters.items()}
        self.__annotations__["return"] = dict

    def __call__(self, **args: Any) -> Any:
        return self._call(self.name, args)

    def to_openai(self, api: Literal["chat", "responses"] = "chat") -> dict[str, Any]:
        """For `tools=` of the chat completions or the responses API."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function} if api == "chat" else {"type": "function"} | function

    def to_anthropic(self) -> dict[str, Any]:
        """For `tools=` of the messages API."""
        return {"name": self.name, "description": self.description, "input_schema": self.parameters}

    def to_json_schema(self) -> dict[str, Any]:
        """The schema of its arguments, with its name and description."""
        return {"title": self.name, "description": self.description} | self.parameters

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"


class Toolset(Sequence[Tool]):
    """The tools of one sandbox. `call` takes what a model sends: a name, and arguments as an object or as JSON text."""

    def __init__(self, tools: Sequence[Tool], call: Call) -> None:
        self._tools = list(tools)
        self.call = call

    @property
    def definitions(self) -> list[Definition]:
        return [tool.definition for tool in self._tools]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return {tool.name: tool for tool in self._tools}[index]
        return self._tools[index]

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools)

    def to_openai(self, api: Literal["chat", "responses"] = "chat") -> list[dict[str, Any]]:
        return [tool.to_openai(api) for tool in self._tools]

    def to_anthropic(self) -> list[dict[str, Any]]:
        return [tool.to_anthropic() for tool in self._tools]

    def to_json_schema(self) -> list[dict[str, Any]]:
        return [tool.to_json_schema() for tool in self._tools]

    def __repr__(self) -> str:
        return f"<Toolset {', '.join(tool.name for tool in self._tools)}>"


class ToolCalls:
    """Answers calls by name over one asynchronous sandbox. Only cancellation is raised.

    `stateful_languages` keep an interpreter from call to call.
    """

    def __init__(
        self,
        sandbox: ToolSandbox,
        max_text: int = MAX_TEXT,
        languages: Sequence[str] | None = None,
        stateful_languages: Sequence[str] = (),
        max_timeout: int = MAX_TIMEOUT,
    ) -> None:
        if isinstance(max_text, bool) or not isinstance(max_text, int) or max_text < 100:
            raise InvalidRequest("must be a whole number of at least 100 characters", field="max_text")
        if isinstance(max_timeout, bool) or not isinstance(max_timeout, int) or max_timeout < 1:
            raise InvalidRequest("must be a whole number of seconds from 1", field="max_timeout")
        has_ports = bool(stateful_languages)  # only there can a server outlive the call that started it
        offered = make_definitions(
            sandbox.capabilities(), sandbox.timeout, has_ports, languages, stateful_languages, max_timeout
        )
        self._by_name = {definition.name: definition for definition in offered}
        self._calls = Calls(sandbox, max_text, stateful_languages)
        self._max_text = max_text

    @property
    def definitions(self) -> list[Definition]:
        return list(self._by_name.values())

    async def answer(self, name: str, args: object, on_output: OnOutput | None = None) -> dict[str, Any]:
        """The answer of a tool. `on_output` gets the output of a run as it arrives."""
        definition = self._by_name.get(name) if isinstance(name, str) else None
        if definition is None:
            reason = f"unknown tool {one_line(str(name)[:40])!r}; one of {', '.join(self._by_name)}"
            return {"status": "error", "stderr": reason, "fault": "caller"}
        try:
            args = as_mapping(args)
            known = check_arguments(definition.parameters, args)
            call: Callable[..., Awaitable[dict[str, Any]]] = getattr(self._calls, name)
            answer = await (call(known, on_output) if name in _RUNS else call(known))
        except Exception as error:
            answer = self._failure(error)
        return answer | list_ignored(definition.parameters["properties"], args)

    def _failure(self, error: Exception) -> dict[str, Any]:
        answer = failure(error, self._max_text)
        if isinstance(error, PatchRejected) and error.misfits:
            misfits = [{"path": item.path, "hunk": item.hunk, "reason": one_line(str(item))} for item in error.misfits]
            answer["misfits"] = misfits[:20]
        return answer


def make_toolset(offered: Sequence[Definition], call: Call, *, is_async: bool) -> Toolset:
    """The tools as callables. `call` is `ToolCalls.answer` or a blocking form of it."""
    return Toolset([Tool(item, call, is_async) for item in offered], call)


def _signature(definition: Definition) -> inspect.Signature:
    """Keyword-only parameters, the required ones first."""
    schema: Mapping[str, Any] = definition.parameters
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if name in schema["required"] else rule.get("default"),
            annotation=_TYPES[rule["type"]] if name in schema["required"] or "default" in rule else str | None,
        )
        for name, rule in schema["properties"].items()
    ]
    return inspect.Signature(parameters, return_annotation=dict)
