"""Declarations made on demand equal wasmtime's own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.helpers import require

ROOT = Path(__file__).parents[4]
#: Describes every declaration, and counts those made at import.
DESCRIBE = """
import ctypes, json, sys
guest, packages, file = sys.argv[1:]
sys.path[:0] = [guest, packages]
from wasm.forked import use
is_used = bool(file) and use(file, packages + "/wasmtime")
import wasmtime
from wasmtime import _ffi as ffi, _bindings as bindings
declared = len([name for name in vars(bindings) if name[:4] in ("wasm", "wasi")])
names = json.loads(sys.stdin.read()) or [name for name in vars(bindings) if name[:4] in ("wasm", "wasi")]
def described(name):
    value = getattr(ffi, name)
    assert value is getattr(bindings, name)
    if isinstance(value, type):
        return [value.__name__, [(each[0], repr(each[1])) for each in getattr(value, "_fields_", ())]]
    function = vars(bindings).get("_" + name)
    return [repr(value.__code__.co_varnames), function.__name__, repr(function.argtypes), repr(function.restype)]
print(json.dumps({"is_used": is_used, "declared": declared, "names": {name: described(name) for name in names}}))
"""
HELLO = """
import sys, threading
guest, packages, file = sys.argv[1:]
sys.path[:0] = [guest, packages]
from wasm.forked import use
assert use(file, packages + "/wasmtime")
from wasmtime import Engine, Instance, Module, Store, _ffi as ffi
types = []
threads = [threading.Thread(target=lambda: types.append(ffi.wasmtime_component_val_t)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(set(map(id, types))) == 1 and len(types) == 8
store = Store(Engine())
module = Module(store.engine, '(module (func (export "six") (result i32) (i32.const 6)))')
print(Instance(store, module, []).exports(store)["six"](store))
try:
    ffi.no_such_name
except AttributeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    spec = importlib.util.find_spec("wasmtime")
    require(spec, "wasmtime is not installed")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[1]


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bindings", ROOT / "modules/bindings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def file(builder: ModuleType, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path | None = builder.write_bindings(tmp_path_factory.mktemp("bindings"))
    assert made is not None, "wasmtime declares its functions in another way now"
    return made


def describe(program: str, packages: Path, file: Path | str, words: str = "[]") -> str:
    command = [sys.executable, "-I", "-S", "-c", program, str(ROOT / "src/warmcell/guest"), str(packages), str(file)]
    return subprocess.run(command, input=words, capture_output=True, text=True, check=True).stdout


def test_every_declaration_equals_wasmtimes(packages: Path, file: Path) -> None:
    plain = json.loads(describe(DESCRIBE, packages, ""))
    names = [*reversed(plain["names"])]  # in another order than the file's
    lazy = json.loads(describe(DESCRIBE, packages, file, json.dumps(names)))
    assert len(names) > 800 and lazy["names"] == plain["names"]
    assert (plain["is_used"], lazy["is_used"]) == (False, True)
    assert lazy["declared"] < plain["declared"] / 10


def test_modules_run_and_threads_find_the_same_types(packages: Path, file: Path) -> None:
    assert describe(HELLO, packages, file).splitlines() == [
        "6",
        "module 'wasmtime._ffi' has no attribute 'no_such_name'",
    ]


@pytest.mark.parametrize("what", ["another wasmtime", "another interpreter", "cut", "nothing"])
def test_bindings_for_another_version_are_ignored(packages: Path, file: Path, tmp_path: Path, what: str) -> None:
    content, other, installed = file.read_bytes(), tmp_path / "other", tmp_path / "packages"
    (installed / "wasmtime").mkdir(parents=True)
    for name in ("_bindings.py", "_ffi.py"):
        (installed / "wasmtime" / name).write_bytes((packages / "wasmtime" / name).read_bytes())
    if what == "another wasmtime":
        with (installed / "wasmtime/_bindings.py").open("a") as bindings:
            bindings.write("\n")
    elif what != "nothing":
        other.write_bytes(b"\0" + content[1:] if what == "another interpreter" else content[:-100])
    program = "import sys; sys.path.insert(0, sys.argv[1]); from wasm.forked import use; "
    program += "print(use(sys.argv[3], sys.argv[2] + '/wasmtime'), len(sys.meta_path))"
    assert describe(program, installed, file if what == "another wasmtime" else other) == "False 3\n"


def test_declarations_of_another_form_are_left_alone(builder: ModuleType) -> None:
    assert builder.split_declarations("import ctypes\nif True:\n    a = 1\n", "") is None
