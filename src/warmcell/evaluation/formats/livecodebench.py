"""LiveCodeBench: cases on stdin, or calls of a method with JSON arguments; private ones packed."""

from __future__ import annotations

import base64
import binascii
import pickletools
import zlib
from typing import Any

from warmcell.core.types import MIB
from warmcell.evaluation.checkers import json_value, words
from warmcell.evaluation.formats.fields import FieldError, call_cases_code, dump, from_json, limits, text
from warmcell.evaluation.json_lines import Record
from warmcell.evaluation.tasks import Task
from warmcell.judging.verdicts import Case

LARGEST_CASES = 256 * MIB
#: What the benchmark's own runner imports before a sample.
IMPORTS = (
    "from string import *\nfrom re import *\nfrom datetime import *\nfrom collections import *\nfrom heapq import *\n"
    "from bisect import *\nfrom copy import *\nfrom math import *\nfrom random import *\nfrom statistics import *\n"
    "from itertools import *\nfrom functools import *\nfrom operator import *\nfrom io import *\nfrom sys import *\n"
    "from json import *\nfrom builtins import *\nfrom typing import *\n"
    "import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools\n"
    "import operator, io, sys, json\nsys.setrecursionlimit(50000)\n\n"
)


def read(task_id: str, record: Record) -> Task:
    plain = [*_cases(record, "public_test_cases")]
    if record.get("private_test_cases"):
        plain += _cases(record, "private_test_cases")
    if not all(isinstance(case, dict) for case in plain):
        raise FieldError("a test case is not an object")
    is_call = any(case.get("testtype") == "functional" for case in plain)
    name = _function(record) if is_call else ""
    return Task(
        task_id,
        tuple(_call_case(case) if is_call else Case(text(case, "input"), text(case, "output")) for case in plain),
        before=IMPORTS,
        after=call_cases_code(f"Solution().{name}") if is_call else "",
        checker=json_value if is_call else words(),
        **limits(record, 6.0, 4096),
    )


def _function(record: Record) -> str:
    metadata = from_json(record.get("metadata", {}), "metadata")
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name.isidentifier():
        raise FieldError("no function name in metadata.func_name")
    return name


def _call_case(case: dict[str, Any]) -> Case:
    arguments = [from_json(line, "input") for line in text(case, "input").splitlines() if line.strip()]
    return Case(dump(arguments), dump(from_json(text(case, "output"), "output")))


def _cases(record: Record, name: str) -> list[Any]:
    value = record.get(name)
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = unpack(value, name)
    cases = from_json(value, name)
    if not isinstance(cases, list):
        raise FieldError(f"{name} must be a list")
    return cases


def unpack(packed: str, name: str) -> str:
    """The text in base64 of zlib of a pickle. The pickle is not loaded: its only string is read."""
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(packed, validate=True), LARGEST_CASES)
        if unzip.unconsumed_tail:
            raise FieldError(f"{name} has more than {LARGEST_CASES // MIB} MiB")
        found = [value for _, value, _ in pickletools.genops(data) if isinstance(value, str)]
    except (binascii.Error, zlib.error, ValueError) as error:
        if isinstance(error, FieldError):
            raise
        raise FieldError(f"{name} is neither JSON nor packed JSON: {error}") from None
    if len(found) != 1:
        raise FieldError(f"{name} holds something other than one text")
    return found[0]
