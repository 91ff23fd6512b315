"""Loads our modules from one file, which takes half as long as loading a hundred files.

Wheels contain the file, written by the interpreter that built them. An entry is used only if its source has the
recorded size and was installed at the same time, so that edits of sources take effect. Without a file for this
interpreter, modules are loaded from `__pycache__`, without the search for other kinds of modules.
"""

from __future__ import annotations

import _imp
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Dict, List, Optional, Tuple

    #: Offset and length of a module's code, the size of its source, and whether it is a package.
    Entry = Tuple[int, int, int, bool]

NAME = f"modules.{sys.implementation.cache_tag}.bin"
#: Files of one installation are written within this time of each other.
_INSTALLED_WITHIN = 60.0
_PACKAGE = "/__init__.py"
_INDEX_AT = len(MAGIC_NUMBER) + 8
#: The header of a .pyc: the magic number, flags, and the time and size of its source.
_HEAD = 16
_AT_ONCE = 1 << 15


def write(path: str, directory: str, excluded: Tuple[str, ...] = ()) -> None:
    """Compile all modules below `directory` into the file `path`, except relative paths that begin with `excluded`."""
    entries: Dict[str, Entry] = {}
    codes: List[bytes] = []
    at = 0
    for place in _modules_below(directory):
        if place.startswith(excluded):
            continue
        with open(os.path.join(directory, place), "rb") as file:
            source = file.read()
        codes.append(marshal.dumps(_compile_without_docstrings(source, place)))
        is_package = place.endswith(_PACKAGE)
        name = place[: -len(_PACKAGE if is_package else ".py")].replace("/", ".")
        entries[name] = (at, len(codes[-1]), len(source), is_package)
        at += len(codes[-1])
    index = marshal.dumps(entries)
    with open(path, "wb") as file:
        file.write(MAGIC_NUMBER + len(index).to_bytes(8, "little") + index + b"".join(codes))


def _compile_without_docstrings(source: bytes, place: str) -> CodeType:
    """Docstrings are a tenth of the file, and commands do not need them."""
    import ast

    tree = ast.parse(source, place)
    for node in ast.walk(tree):
        has_body = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if has_body and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
            body = node.body  # type: ignore[attr-defined]
            body[0:1] = [] if len(body) > 1 else [ast.copy_location(ast.Pass(), body[0])]
    code: CodeType = compile(tree, place, "exec", dont_inherit=True, optimize=0)
    return code


def _modules_below(directory: str) -> List[str]:
    """Relative paths, except the directory's own __init__.py, which is loaded before this module."""
    found = []
    for base, _, names in os.walk(directory):
        inside = os.path.relpath(base, directory).replace(os.sep, "/")
        found += [f"{inside}/{name}"[2 if inside == "." else 0 :] for name in names if name.endswith(".py")]
    return sorted(place for place in found if place != "__init__.py")


def use(directory: str, package: str, known_as: str) -> None:
    """Load modules of the package from the file in `directory`, if there is one for this interpreter.

    `known_as` is the prefix of their names in the file, where names are relative to its directory.
    """
    if sys.flags.optimize:
        return
    try:
        sys.meta_path.insert(0, Bundle(directory, package, known_as))
    except (OSError, ValueError, EOFError, TypeError):
        if sys.pycache_prefix is None and sys.implementation.cache_tag:
            sys.meta_path.insert(0, PycFinder(directory, package, known_as))


def stop_using() -> None:
    """Remove our finders from sys.meta_path: guests must not see them."""
    for finder in [finder for finder in sys.meta_path if isinstance(finder, (Bundle, PycFinder))]:
        sys.meta_path.remove(finder)
        finder.close()


def descriptors() -> List[int]:
    """The descriptors that loading modules requires."""
    return [finder.descriptor for finder in sys.meta_path if isinstance(finder, Bundle)]


class Bundle:
    """Finds modules in the file, which stays open, so that replacing it has no effect.

    It is not mapped: guests would inherit the mapping, and see its path.
    """

    def __init__(self, directory: str, package: str, known_as: str) -> None:
        self._directory, self._prefix, self._known_as = directory, f"{package}.", known_as
        self._path = f"{directory}/{NAME}"
        self._file = open(self._path, "rb", buffering=0)
        self._latest = os.fstat(self._file.fileno()).st_mtime + _INSTALLED_WITHIN
        head = self._file.read(_INDEX_AT)
        if head[: len(MAGIC_NUMBER)] != MAGIC_NUMBER:
            raise ValueError("written by another interpreter")
        index_length = int.from_bytes(head[len(MAGIC_NUMBER) :], "little")
        self._codes_at = _INDEX_AT + index_length
        self._entries: Dict[str, Entry] = marshal.loads(self._file.read(index_length))

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def find_spec(self, name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        if not name.startswith(self._prefix):
            return None
        inside = self._known_as + name[len(self._prefix) :]
        entry = self._entries.get(inside)
        if entry is None:
            return None
        place = f"{self._directory}/{_place(inside, entry[3])}"
        return _make_spec(name, place, self._path, _BundleLoader(name, place, self, entry), entry[3])

    def code(self, path: str, entry: Entry) -> Optional[CodeType]:
        """None if the source is not the one that was compiled."""
        at, length, size, _ = entry
        source = os.stat(path)
        if source.st_size != size or source.st_mtime > self._latest:
            return None
        try:
            code: CodeType = marshal.loads(os.pread(self._file.fileno(), length, self._codes_at + at))
        except (ValueError, EOFError, TypeError):  # truncated or overwritten
            return None
        _imp._fix_co_filename(code, path)  # type: ignore[attr-defined]
        return code


class _OwnLoader(SourceFileLoader):
    """Like its base class, but subclasses provide the code."""

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        if code is None:
            raise ImportError(f"no code in {self.path}")
        exec(code, module.__dict__)  # noqa: S102  # our own


class _BundleLoader(_OwnLoader):
    def __init__(self, name: str, path: str, bundle: Bundle, entry: Entry) -> None:
        super().__init__(name, path)
        self._bundle, self._entry = bundle, entry

    def get_code(self, fullname: str) -> Optional[CodeType]:
        return self._bundle.code(self.path, self._entry) or super().get_code(fullname)


class PycFinder:
    """Finds modules as up-to-date files in `__pycache__`, by name alone. Others are left to Python."""

    def __init__(self, directory: str, package: str, known_as: str) -> None:
        self._directory, self._prefix, self._known_as = directory, f"{package}.", known_as

    def close(self) -> None:
        """Nothing is open."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        if not name.startswith(self._prefix):
            return None
        inside = self._known_as + name[len(self._prefix) :]
        for is_package in (False, True):
            place = f"{self._directory}/{_place(inside, is_package)}"
            base, _, file = place.rpartition("/")
            cached = f"{base}/__pycache__/{file[:-3]}.{sys.implementation.cache_tag}.pyc"
            try:
                source = os.stat(place)
                code = _read_pyc(cached, int(source.st_mtime), source.st_size)
            except (OSError, ValueError, EOFError, TypeError):
                continue
            if code is None:
                return None
            _imp._fix_co_filename(code, place)  # type: ignore[attr-defined]
            return _make_spec(name, place, cached, _ReadLoader(name, place, code), is_package)
        return None


class _ReadLoader(_OwnLoader):
    """A loader whose code was read when the module was found."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code: Optional[CodeType] = code

    def get_code(self, fullname: str) -> Optional[CodeType]:
        code, self._code = self._code or super().get_code(fullname), None
        return code


def _read_pyc(path: str, modified: int, size: int) -> Optional[CodeType]:
    """The code if it was compiled from a source with this time and size, else None."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = part = os.read(descriptor, _AT_ONCE)
        while len(part) == _AT_ONCE:
            part = os.read(descriptor, _AT_ONCE)
            content += part
    finally:
        os.close(descriptor)
    expected = (0, modified & 0xFFFFFFFF, size & 0xFFFFFFFF)
    if content[:_HEAD] != MAGIC_NUMBER + b"".join([number.to_bytes(4, "little") for number in expected]):
        return None
    code: CodeType = marshal.loads(memoryview(content)[_HEAD:])
    return code


def _make_spec(name: str, place: str, cached: str, loader: SourceFileLoader, is_package: bool) -> ModuleSpec:
    spec = ModuleSpec(name, loader, origin=place)
    spec.has_location = True
    spec.cached = cached  # computing it would take as long as everything else
    if is_package:
        spec.submodule_search_locations = [place[: -len(_PACKAGE)]]
    return spec


def _place(name: str, is_package: bool) -> str:
    return name.replace(".", "/") + (_PACKAGE if is_package else ".py")
