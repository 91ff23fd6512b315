"""Modules of `guest/` as one file: twenty files take too long to write into a cage and to find there."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Iterable
from importlib.util import MAGIC_NUMBER


def pack_modules(directory: str, names: Iterable[str], shown_name: Callable[[str], str]) -> bytes:
    """The source of each module and, to save time, its compiled code. `shown_name`: the file name in tracebacks.

    Every Python can read the outer form; the code in it is used by one with the same magic number.
    """
    sources, compiled = {}, {}
    for name in names:
        with open(os.path.join(directory, f"{name}.py"), encoding="utf-8") as file:
            sources[name] = file.read()
        code = compile(sources[name], shown_name(name), "exec", dont_inherit=True, optimize=0)
        compiled[name] = marshal.dumps(code)
    return marshal.dumps((MAGIC_NUMBER, sources, compiled), 2)
