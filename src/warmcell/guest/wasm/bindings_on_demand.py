"""The part of wasmtime that declares its 760 C functions and their types, of which a run needs a tenth: each is
declared when its name is first looked up.

A wheel brings the statements of wasmtime's own file, compiled one by one by the interpreter that built it, with what
each of them needs (`modules/bindings.py` writes them). For any other interpreter, any other content of that file and
programs that live on, wasmtime is imported as it always is.
"""

from __future__ import annotations

import _imp
import marshal
import sys
from _blake2 import blake2b
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

NAME = f"bindings.{sys.implementation.cache_tag}.bin"
BINDINGS, USER = "wasmtime._bindings", "wasmtime._ffi"
_DIGEST_BYTES = 32


def digest_of(directory: str) -> bytes:
    """Of the two files of wasmtime that must be those that the statements were taken from."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name in (BINDINGS, USER):
        with open(f"{directory}/{name.rpartition('.')[2]}.py", "rb") as file:
            digest.update(file.read())
    return digest.digest()


def write(path: str, directory: str, content: dict[str, Any]) -> None:
    with open(path, "wb") as file:
        file.write(MAGIC_NUMBER + digest_of(directory) + marshal.dumps(content))


def use(path: str, directory: str) -> bool:
    """From now on these bindings are declared on demand, where the file fits what is installed."""
    try:
        with open(path, "rb") as file:
            head, content = file.read(len(MAGIC_NUMBER) + _DIGEST_BYTES), file.read()
        if head != MAGIC_NUMBER + digest_of(directory):
            return False
        declarations = _Declarations(directory, **marshal.loads(content))
    except (OSError, ValueError, EOFError, TypeError):
        return False
    sys.meta_path.insert(0, declarations)
    return True


class _Declarations:
    """Finds and loads that one module.

    `statements` are in the order of the file; `named` says of each name which of them declare it, and which other names
    these mention. What is declared together is declared in the file's order, so that all is as it would be there.
    """

    def __init__(
        self,
        directory: str,
        imports: bytes,
        statements: list[bytes],
        named: dict[str, tuple[tuple[int, ...], tuple[str, ...]]],
        at_once: tuple[str, ...],
    ) -> None:
        self._file = f"{directory}/_bindings.py"
        self._imports, self._statements, self._named, self._at_once = imports, statements, named, at_once
        self._declared: set[str] = set()
        self._scope: dict[str, Any] = {}
        #: A name that two threads look up at once is one type, not two.
        self._lock = allocate_lock()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != BINDINGS:
            return None
        spec = ModuleSpec(name, self, origin=self._file)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Its one user takes all names that there are, and is asked for them by everybody else."""
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        self._scope = module.__dict__
        self._run(self._imports)
        for name in self._at_once:
            self._declare(name)
        user = sys.modules[USER]
        module.__getattr__ = self._look_up  # type: ignore[method-assign]
        user.__getattr__ = self._look_up  # type: ignore[method-assign]

    def _look_up(self, name: str) -> Any:
        """For who found no such name in either module."""
        if name not in self._named:
            raise AttributeError(f"module {USER!r} has no attribute {name!r}")
        with self._lock:
            self._declare(name)
        value = self._scope[name]
        sys.modules[USER].__dict__[name] = value
        return value

    def _declare(self, name: str) -> None:
        needed, left = [], [name]
        while left:
            if (each := left.pop()) not in self._declared:
                self._declared.add(each)
                numbers, mentioned = self._named[each]
                needed += numbers
                left += mentioned
        for number in sorted(needed):
            self._run(self._statements[number])

    def _run(self, statement: bytes) -> None:
        code = marshal.loads(statement)
        _imp._fix_co_filename(code, self._file)  # type: ignore[attr-defined]
        exec(code, self._scope)  # wasmtime's own
