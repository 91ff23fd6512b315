"""APPS: inputs and outputs, as text for stdin or as arguments of the function `fn_name`."""

from __future__ import annotations

from typing import Any

from warmcell.evaluation.checkers import json_value, words
from warmcell.evaluation.formats.fields import FieldError, call_cases_code, dump, from_json, limits
from warmcell.evaluation.formats.livecodebench import IMPORTS
from warmcell.evaluation.json_lines import Record
from warmcell.evaluation.tasks import DEFAULT_MEMORY_MB, DEFAULT_TIMEOUT, Task
from warmcell.judging.verdicts import Case


def read(task_id: str, record: Record) -> Task:
    tests = from_json(record["input_output"], "input_output")
    if not isinstance(tests, dict):
        raise FieldError("input_output must be an object")
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise FieldError("input_output needs inputs and outputs, lists of the same length")
    name = tests.get("fn_name")
    if name is not None and (not isinstance(name, str) or not name.isidentifier()):
        raise FieldError("fn_name is not a Python name")
    return Task(
        task_id,
        tuple(map(_call_case if name else _text_case, inputs, outputs)),
        before=IMPORTS,
        after=call_cases_code(_find(name)) if name else "",
        checker=json_value if name else words("1e-6"),
        **limits(record, DEFAULT_TIMEOUT, DEFAULT_MEMORY_MB),
    )


def _find(name: str) -> str:
    """The function itself, or the method of a class `Solution`."""
    return f"(Solution().{name} if 'Solution' in globals() else {name})"


def _text_case(given: Any, expected: Any) -> Case:
    return Case(_text(given), _text(expected))


def _text(value: Any) -> str:
    """Some tests have a list of lines in place of the text."""
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if not isinstance(value, str):
        raise FieldError("inputs and outputs must be texts")
    return value


def _call_case(given: Any, expected: Any) -> Case:
    if not isinstance(given, list):
        raise FieldError("inputs of a function must be lists of arguments")
    # Outputs are the result in a list of one.
    result = expected[0] if isinstance(expected, list) and len(expected) == 1 else expected
    return Case(dump(given), dump(result))
