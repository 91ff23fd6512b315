"""HumanEval: a prompt to continue, and a `check` function that calls `entry_point`."""

from __future__ import annotations

from warmcell.evaluation.checkers import last_line
from warmcell.evaluation.formats.fields import FieldError, limits, text
from warmcell.evaluation.json_lines import Record
from warmcell.evaluation.tasks import DEFAULT_MEMORY_MB, DEFAULT_TIMEOUT, PYTHON_END, Task
from warmcell.judging.verdicts import Case


def read(task_id: str, record: Record) -> Task:
    entry = text(record, "entry_point")
    if not entry.isidentifier():
        raise FieldError(f"entry_point {entry[:40]!r} is not a Python name")
    return Task(
        task_id,
        (Case(),),
        prompt=text(record, "prompt"),
        after=f"\n\n{text(record, 'test')}\n\ncheck({entry}){PYTHON_END}",
        checker=last_line,
        proves_end=True,
        **limits(record, DEFAULT_TIMEOUT, DEFAULT_MEMORY_MB),
    )
