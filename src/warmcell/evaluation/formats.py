"""Reads task records. The format of a record is recognised by a field that only its records have."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Callable
from json import dumps
from typing import Any

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.request_checks import check_text
from warmcell.core.types import MIB
from warmcell.evaluation.checkers import has_passed_tests, json_value, json_value_in_list, last_line, words
from warmcell.evaluation.json_lines import Record
from warmcell.evaluation.tasks import DEFAULT_MEMORY_MB, DEFAULT_TIMEOUT, PYTHON_END, Sample, Task
from warmcell.judging.verdicts import Case
from warmcell.workspace.untrusted_files import parse_json

ID_NAMES = ("task_id", "question_id", "instance_id", "problem_id", "id")
LARGEST_CASES = 256 * MIB
#: What LiveCodeBench's own runner imports before a sample.
IMPORTS = (
    "from string import *\nfrom re import *\nfrom datetime import *\nfrom collections import *\nfrom heapq import *\n"
    "from bisect import *\nfrom copy import *\nfrom math import *\nfrom random import *\nfrom statistics import *\n"
    "from itertools import *\nfrom functools import *\nfrom operator import *\nfrom io import *\nfrom sys import *\n"
    "from json import *\nfrom builtins import *\nfrom typing import *\n"
    "import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools\n"
    "import operator, io, sys, json\nsys.setrecursionlimit(50000)\n\n"
)
_SWEBENCH_HINT = (
    "SWE-bench's own records have none: add the image with the repository, and the command that runs its tests"
)
#: The files that a patch changes, creates or renames.
_CHANGED_FILE = re.compile(
    r"^(?:--- a/([^\t\n]+).*\n\+\+\+ |--- /dev/null\n\+\+\+ b/([^\t\n]+)|diff --git a/.+ b/(.+)$|rename from (.+)$)",
    re.MULTILINE,
)
#: The exit status of the tests does not count, their report does: tests that already failed may go on failing.
#: Samples may have changed the tests' files too, which are put back before the tests' patch, as SWE-bench does.
_SWEBENCH_SCRIPT = """\
patches=$PWD
cd "$(cat directory)" || exit 1
apply() {
    test ! -s "$1" || git apply --whitespace=nowarn "$1" || patch --batch --forward --fuzz=5 -p1 -i "$1"
}
for_test_files() {
    number=0
    while IFS= read -r path; do
        number=$((number + 1))
        "$1" "$path" "$patches/test.$number" || exit 1
    done < "$patches/test.files"
}
is_file() {
    test -f "$1" || test -L "$1"
}
keep() {
    if is_file "$1"; then cp -pP "$1" "$2"; fi
}
put_back() {
    if is_file "$1"; then rm -f "$1" || return 1; fi
    if is_file "$2"; then mkdir -p "$(dirname "$1")" && cp -pP "$2" "$1"; fi
}
for_test_files keep
apply "$patches/model.patch" || { echo "the patch does not apply" >&2; exit 1; }
for_test_files put_back
apply "$patches/test.patch" || { echo "the test patch does not apply" >&2; exit 1; }
sh "$patches/tests.sh" 2>&1
exit 0
"""


class FieldError(ValueError):
    """A field of the record is missing or wrong."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def read_task(record: Record, place: str) -> Task:
    """The task of a record. Raises `InvalidRequest` that names the record and the field that is missing or wrong."""
    task_id = find_id(record, place, "tasks")
    name = next((name for name, (mark, _) in FORMATS.items() if mark in record), None)
    if name is None:
        known = ", ".join(f"{name} has {mark!r}" for name, (mark, _) in FORMATS.items())
        hint = f"see docs/evaluation.md for the formats: {known}"
        raise InvalidRequest(f"{place} ({task_id}): unknown kind of task", field="tasks", hint=hint)
    try:
        task = FORMATS[name][1](task_id, record)
        # Whether a program can be made of it: what is wrong with the task is not the fault of any sample.
        task.make_request(Sample("x"))
    except (FieldError, SandboxError) as error:
        message = f"{place} ({task_id}, read as {name}): {getattr(error, 'message', error)}"
        raise InvalidRequest(message, field="tasks", hint=error.hint) from None
    return task


def find_id(record: Record, place: str, field: str) -> str:
    for name in ID_NAMES:
        if isinstance(record.get(name), str | int) and str(record[name]):
            return check_text(f"{field}: {place}: {name}", str(record[name]))
    hint = f"one of {', '.join(ID_NAMES)}"
    raise InvalidRequest(f"{place}: no field {ID_NAMES[0]!r}", field=field, hint=hint)


def read_plain(task_id: str, record: Record) -> Task:
    """Our own format: `cases` with stdin and expected output, a language, limits, an image."""
    if not isinstance(record["cases"], list):
        raise FieldError("cases must be a list")
    files = record.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(content, str) for content in files.values()):
        raise FieldError("files must be an object of texts by path")
    return Task(
        task_id,
        tuple(_plain_case(plain, index) for index, plain in enumerate(record["cases"])),
        _text(record, "language", default="python"),
        _text(record, "prompt", default=""),
        _text(record, "before", default=""),
        _text(record, "after", default=""),
        files,
        checker=_text(record, "checker", default="trim"),
        image=record.get("image") and _text(record, "image"),
        **_limits(record),
    )


def _plain_case(plain: Any, index: int) -> Case:
    if not isinstance(plain, dict):
        raise FieldError(f"cases[{index}] must be an object")
    expected = _text(plain, "expected", "output", "expected_output")
    try:
        return Case(_text(plain, "stdin", "input", default=""), expected, plain.get("timeout"), plain.get("memory_mb"))
    except InvalidRequest as error:
        raise FieldError(f"cases[{index}].{error.message}") from None


def read_humaneval(task_id: str, record: Record) -> Task:
    """HumanEval: a prompt to continue, and a `check` function that calls `entry_point`."""
    entry = _text(record, "entry_point")
    if not entry.isidentifier():
        raise FieldError(f"entry_point {entry[:40]!r} is not a Python name")
    prompt, tests = _text(record, "prompt"), f"{_text(record, 'test')}\n\ncheck({entry})"
    return _task_with_assertions(task_id, record, tests, prompt)


def read_mbpp(task_id: str, record: Record) -> Task:
    """MBPP: a list of assertions about the functions that the sample defines."""
    setup = [_text(record, "test_setup_code", default="")]
    if "test_imports" in record:  # the sanitised split
        setup = _texts(record, "test_imports")
    return _task_with_assertions(task_id, record, "\n".join([*setup, *_texts(record, "test_list")]))


def _task_with_assertions(task_id: str, record: Record, tests: str, prompt: str = "") -> Task:
    after = f"\n\n{tests}{PYTHON_END}"
    limits = _limits(record)
    return Task(task_id, (Case(),), prompt=prompt, after=after, checker=last_line, proves_end=True, **limits)


def read_livecodebench(task_id: str, record: Record) -> Task:
    """LiveCodeBench: cases on stdin, or calls of a method with JSON arguments; private ones packed."""
    plain = [*_read_packed_cases(record, "public_test_cases")]
    if record.get("private_test_cases"):
        plain += _read_packed_cases(record, "private_test_cases")
    if not all(isinstance(case, dict) for case in plain):
        raise FieldError("a test case is not an object")
    is_call = any(case.get("testtype") == "functional" for case in plain)
    name = _function_name(record) if is_call else ""
    return Task(
        task_id,
        tuple(_json_case(case) if is_call else Case(_text(case, "input"), _text(case, "output")) for case in plain),
        before=IMPORTS,
        after=_call_cases(f"Solution().{name}") if is_call else "",
        checker=json_value if is_call else words(),
        **_limits(record, 6.0, 4096),
    )


def _function_name(record: Record) -> str:
    metadata = _from_json(record.get("metadata", {}), "metadata")
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name.isidentifier():
        raise FieldError("no function name in metadata.func_name")
    return name


def _json_case(case: dict[str, Any]) -> Case:
    arguments = [_from_json(line, "input") for line in _text(case, "input").splitlines() if line.strip()]
    return Case(dumps(arguments), dumps(_from_json(_text(case, "output"), "output")))


def _read_packed_cases(record: Record, name: str) -> list[Any]:
    value = record.get(name)
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = unpack(value, name)
    cases = _from_json(value, name)
    if not isinstance(cases, list):
        raise FieldError(f"{name} must be a list")
    return cases


def unpack(packed: str, name: str) -> str:
    """The text in base64 of zlib of a pickle. The pickle is not loaded: its only string is read."""
    from pickletools import genops

    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(packed, validate=True), LARGEST_CASES)
        if unzip.unconsumed_tail:
            raise FieldError(f"{name} has more than {LARGEST_CASES // MIB} MiB")
        found = [value for _, value, _ in genops(data) if isinstance(value, str)]
    except (binascii.Error, zlib.error, ValueError) as error:
        if isinstance(error, FieldError):
            raise
        raise FieldError(f"{name} is neither JSON nor packed JSON: {error}") from None
    if len(found) != 1:
        raise FieldError(f"{name} must hold one text")
    return found[0]


def read_apps(task_id: str, record: Record) -> Task:
    """APPS: inputs and outputs, as text for stdin or as arguments of the function `fn_name`."""
    tests = _from_json(record["input_output"], "input_output")
    if not isinstance(tests, dict):
        raise FieldError("input_output must be an object")
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise FieldError("input_output needs inputs and outputs, lists of the same length")
    name = tests.get("fn_name")
    if name is not None and (not isinstance(name, str) or not name.isidentifier()):
        raise FieldError("fn_name is not a Python name")
    # The function itself, or the method of a class `Solution`.
    function = f"(Solution().{name} if 'Solution' in globals() else {name})"
    return Task(
        task_id,
        tuple(map(_call_case if name else _text_case, inputs, outputs)),
        before=IMPORTS,
        after=_call_cases(function) if name else "",
        checker=json_value_in_list if name else words("1e-6"),
        **_limits(record),
    )


def _text_case(given: Any, expected: Any) -> Case:
    """Some tests have a list of lines in place of the text."""
    given, expected = ("\n".join(map(str, each)) if isinstance(each, list) else each for each in (given, expected))
    if not isinstance(given, str) or not isinstance(expected, str):
        raise FieldError("inputs and outputs must be texts")
    return Case(given, expected)


def _call_case(given: Any, expected: Any) -> Case:
    if not isinstance(given, list):
        raise FieldError("inputs of a function must be lists of arguments")
    return Case(dumps(given), dumps(expected))


def _call_cases(entry: str) -> str:
    """Python that calls `entry` with the JSON list of arguments on stdin and prints the result as JSON."""
    return (
        "\n\nimport json as _json, sys as _sys\n"
        f"_value = {entry}(*_json.loads(_sys.__stdin__.read()))\n"
        "print('\\n' + _json.dumps(_value, default=list))\n"
    )


def read_swebench(task_id: str, record: Record) -> Task:
    """SWE-bench: a patch for a repository in an image, and tests that must pass after it."""
    wanted = [*_texts(record, "FAIL_TO_PASS"), *_texts(record, "PASS_TO_PASS")]
    test_patch = _text(record, "test_patch", default="")
    changed = {name for names in _CHANGED_FILE.findall(test_patch) for name in names if name}
    return Task(
        task_id,
        (Case(expected="\n".join(wanted)),),
        "command",
        before=_SWEBENCH_SCRIPT,
        files={
            "test.patch": test_patch,
            "test.files": "".join(f"{name}\n" for name in sorted(changed)),
            "tests.sh": _text(record, "test_cmd", "test_command", "eval_script", hint=_SWEBENCH_HINT),
            "directory": _text(record, "workdir", default="/testbed"),
        },
        sample_file="model.patch",
        checker=has_passed_tests,
        image=_text(record, "image", "image_name", "docker_image", hint=_SWEBENCH_HINT),
        output_bytes=64 * MIB,
        **_limits(record, 1800.0, 8192),
    )


#: By format: a field that only its records have, and its reader. The first that matches is used.
FORMATS: dict[str, tuple[str, Callable[[str, Record], Task]]] = {
    "plain": ("cases", read_plain),
    "humaneval": ("entry_point", read_humaneval),
    "mbpp": ("test_list", read_mbpp),
    "livecodebench": ("public_test_cases", read_livecodebench),
    "apps": ("input_output", read_apps),
    "swebench": ("FAIL_TO_PASS", read_swebench),
}


def _text(record: Record, *names: str, default: str | None = None, hint: str | None = None) -> str:
    """The first of the fields that is there."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return value
        if value is not None:
            raise FieldError(f"{name} must be text, not {type(value).__name__}")
    if default is None:
        raise FieldError(f"no field {' or '.join(map(repr, names))}", hint)
    return default


def _texts(record: Record, name: str) -> list[str]:
    """A list of texts, which may itself be JSON in a text, as Hugging Face's tables have it."""
    value = record.get(name)
    if value is None:
        raise FieldError(f"no field {name!r}")
    value = _from_json(value, name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FieldError(f"{name} must be a list of texts")
    return value


def _from_json(value: Any, name: str) -> Any:
    """The value, parsed if it is a text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise FieldError(f"{name} is not JSON: {error}") from None


def _limits(record: Record, timeout: float = DEFAULT_TIMEOUT, memory_mb: int = DEFAULT_MEMORY_MB) -> dict[str, Any]:
    """`timeout` and `memory_mb` of the record, else these. The task checks them."""
    return {"timeout": record.get("timeout", timeout), "memory_mb": record.get("memory_mb", memory_mb)}
