"""Our own format: `cases` with stdin and expected output, a language, limits, an image."""

from __future__ import annotations

from typing import Any

from warmcell.core.errors import InvalidRequest
from warmcell.evaluation.formats.fields import FieldError, limits, text
from warmcell.evaluation.json_lines import Record
from warmcell.evaluation.tasks import DEFAULT_MEMORY_MB, DEFAULT_TIMEOUT, Task
from warmcell.judging.verdicts import Case


def read(task_id: str, record: Record) -> Task:
    if not isinstance(record["cases"], list):
        raise FieldError("cases must be a list")
    files = record.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(content, str) for content in files.values()):
        raise FieldError("files must be an object of texts by path")
    return Task(
        task_id,
        tuple(_case(plain, index) for index, plain in enumerate(record["cases"])),
        text(record, "language", default="python"),
        text(record, "prompt", default=""),
        text(record, "before", default=""),
        text(record, "after", default=""),
        files,
        checker=text(record, "checker", default="trim"),
        image=record.get("image") and text(record, "image"),
        **limits(record, DEFAULT_TIMEOUT, DEFAULT_MEMORY_MB),
    )


def _case(plain: Any, index: int) -> Case:
    if not isinstance(plain, dict):
        raise FieldError(f"cases[{index}] must be an object")
    expected = text(plain, "expected", "output", "expected_output")
    try:
        return Case(text(plain, "stdin", "input", default=""), expected, plain.get("timeout"), plain.get("memory_mb"))
    except InvalidRequest as error:
        raise FieldError(f"cases[{index}].{error.message}") from None
