"""The worker inside a zygote: imported once, so that each worker starts as a fork with everything loaded.

Nothing of wasmtime is called before the fork: each worker makes its own engines, stores and random state.
"""

from __future__ import annotations

import _imp
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

#: Below the directory of packages: part of the package `warmcell-toolbox`.
_READY_MADE = "warmcell_toolbox/ready_made"
NAME = f"bindings.{sys.implementation.cache_tag}.bin"
BINDINGS, USER = "wasmtime._bindings", "wasmtime._ffi"
_HASH_BYTES = 8


def prepare(packages: str, is_for_one: bool) -> None:
    """Runs in the zygote. `is_for_one`: it will fork a single worker, so load only what that needs."""
    if is_for_one:
        use(os.path.join(packages, _READY_MADE, NAME), os.path.join(packages, "wasmtime"))
    __import__("wasm.worker")


def warm_up() -> None:
    """Nothing to warm up: no work of a worker may happen before the fork."""


def reset_state() -> None:
    """Nothing to forget: the imports contain nothing of the host."""


def run(_job: Any) -> None:
    """Runs in the finished cage, with the supervisor at descriptor 0. Never returns."""
    from wasm.worker import main

    os.environ.clear()
    main()


# ---- bindings on demand ----
#
# Declares the 760 C functions and types of wasmtime lazily, when a name is first looked up. A run needs a tenth. A
# wheel contains the statements of wasmtime's own file, compiled one by one by the interpreter that built it, with their
# dependencies (`modules/bindings.py` writes them). With another interpreter, another version of that file, or in a
# long-lived program, wasmtime is imported as usual.


def hashes_of(directory: str) -> bytes:
    """Hashes of the two wasmtime files that must be unchanged, as in hash-based byte code."""
    hashes = b""
    for name in (BINDINGS, USER):
        with open(f"{directory}/{name.rpartition('.')[2]}.py", "rb") as file:
            hashes += _imp.source_hash(int.from_bytes(MAGIC_NUMBER, "little"), file.read())
    return hashes


def write(path: str, directory: str, content: dict[str, Any]) -> None:
    with open(path, "wb") as file:
        file.write(MAGIC_NUMBER + hashes_of(directory) + marshal.dumps(content))


def use(path: str, directory: str) -> bool:
    """Declares these bindings on demand from now on. False if the file does not match the installed wasmtime."""
    try:
        with open(path, "rb") as file:
            head, content = file.read(len(MAGIC_NUMBER) + 2 * _HASH_BYTES), file.read()
        if head != MAGIC_NUMBER + hashes_of(directory):
            return False
        declarations = _Declarations(directory, **marshal.loads(content))
    except (OSError, ValueError, EOFError, TypeError):
        return False
    sys.meta_path.insert(0, declarations)
    sys.modules.update(_STAND_INS)
    return True


class _Path:
    """The part of `pathlib.Path` that wasmtime uses to find its library; `pathlib` takes long to load."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def parent(self) -> _Path:
        return _Path(os.path.dirname(self._path))

    def __truediv__(self, name: str) -> _Path:
        return _Path(os.path.join(self._path, name))

    def __str__(self) -> str:
        return self._path


def _module(name: str, **members: object) -> ModuleType:
    module = type(sys)(name)
    module.__dict__.update(members)
    return module


#: For the imports of that one file, whose content is known. Removed before any other code can see them.
_STAND_INS = {
    name: module
    for name, module in (
        ("pathlib", _module("pathlib", Path=_Path)),
        ("platform", _module("platform", machine=lambda: os.uname().machine)),
    )
    if name not in sys.modules
}


class _Declarations:
    """Finds and loads that one module.

    `code` has the statements in file order, each from one of `ends` to the next. `named` maps each name to the
    statements that declare it and the names that these use. Statements that run together run in file order.
    """

    def __init__(
        self, directory: str, imports: bytes, code: bytes, ends: bytes, named: dict[str, str], at_once: tuple[str, ...]
    ) -> None:
        self._file = f"{directory}/_bindings.py"
        self._imports, self._code, self._named, self._at_once = imports, code, named, at_once
        self._ends = memoryview(ends).cast("I")
        self._declared: set[str] = set()
        self._scope: dict[str, Any] = {}
        #: Two threads that look up a name at once must get the same type.
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
        """`wasmtime._ffi` star-imports this module; everything else looks names up there."""
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        for name in _STAND_INS:
            del sys.modules[name]
        self._scope = module.__dict__
        self._run(self._imports)
        for name in self._at_once:
            self._declare(name)
        module.__getattr__ = self._look_up  # type: ignore[method-assign]
        sys.modules[USER].__getattr__ = self._look_up  # type: ignore[method-assign]

    def _look_up(self, name: str) -> Any:
        """The `__getattr__` of both modules."""
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
                for word in self._named[each].split():
                    if word.isdigit():
                        needed.append(int(word))
                    else:
                        left.append(word)
        for number in sorted(needed):
            self._run(self._code[self._ends[number] : self._ends[number + 1]])

    def _run(self, statement: bytes) -> None:
        code = marshal.loads(statement)
        _imp._fix_co_filename(code, self._file)  # type: ignore[attr-defined]
        exec(code, self._scope)  # wasmtime's own
