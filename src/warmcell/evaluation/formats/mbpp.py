"""MBPP: a list of assertions about the functions that the sample defines."""

from __future__ import annotations

from warmcell.evaluation.checkers import last_line
from warmcell.evaluation.formats.fields import limits, text, texts
from warmcell.evaluation.json_lines import Record
from warmcell.evaluation.tasks import DEFAULT_MEMORY_MB, DEFAULT_TIMEOUT, PYTHON_END, Task
from warmcell.judging.verdicts import Case


def read(task_id: str, record: Record) -> Task:
    setup = [text(record, "test_setup_code", default="")]
    if "test_imports" in record:  # the sanitised split
        setup = texts(record, "test_imports")
    return Task(
        task_id,
        (Case(),),
        after="\n\n" + "\n".join([*setup, *texts(record, "test_list")]) + PYTHON_END,
        checker=last_line,
        proves_end=True,
        **limits(record, DEFAULT_TIMEOUT, DEFAULT_MEMORY_MB),
    )
