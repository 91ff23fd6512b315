"""Recognises the format of a task record by its fields. One file for each format."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.request_checks import check_text
from warmcell.evaluation.formats.fields import FieldError
from warmcell.evaluation.json_lines import Record
from warmcell.evaluation.tasks import Sample, Task

#: By format: a field that only its records have. The first that matches is used.
FORMATS = {
    "plain": "cases",
    "humaneval": "entry_point",
    "mbpp": "test_list",
    "livecodebench": "public_test_cases",
    "apps": "input_output",
    "swebench": "FAIL_TO_PASS",
}
ID_NAMES = ("task_id", "question_id", "instance_id", "problem_id", "id")
_HINT = "see docs/evaluation.md for the formats: " + ", ".join(f"{name} has {mark!r}" for name, mark in FORMATS.items())
Reader = Callable[[str, Record], Task]


def read_task(record: Record, place: str) -> Task:
    """The task of a record. Raises `InvalidRequest` that names the record and the field that is missing or wrong."""
    task_id = find_id(record, place, "tasks")
    name = next((name for name, mark in FORMATS.items() if mark in record), None)
    if name is None:
        raise InvalidRequest(f"{place} ({task_id}): unknown kind of task", field="tasks", hint=_HINT)
    reader: Reader = import_module(f"{__name__}.{name}").read
    try:
        return _check(reader(task_id, record))
    except FieldError as error:
        where = f"{place} ({task_id}, read as {name})"
        raise InvalidRequest(f"{where}: {error}", field="tasks", hint=error.hint) from None
    except SandboxError as error:
        message = f"{place} ({task_id}, read as {name}): {error.message}"
        raise InvalidRequest(message, field="tasks", hint=error.hint) from None


def _check(task: Task) -> Task:
    """Whether a program can be made of it: what is wrong with the task is not the fault of any sample."""
    task.make_request(Sample("x"))
    return task


def find_id(record: Record, place: str, field: str) -> str:
    for name in ID_NAMES:
        if isinstance(record.get(name), str | int) and str(record[name]):
            return check_text(f"{field}: {place}: {name}", str(record[name]))
    hint = f"one of {', '.join(ID_NAMES)}"
    raise InvalidRequest(f"{place}: no field {ID_NAMES[0]!r}", field=field, hint=hint)
