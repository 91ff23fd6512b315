"""Splits the declarations of the installed wasmtime into statements, for `guest/wasm/forked.py`."""

from __future__ import annotations

import array
import ast
import importlib.util
import itertools
import marshal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_bindings(directory: Path) -> Path | None:
    """Writes the file into that directory. None if wasmtime is not installed or its declarations look different."""
    spec = importlib.util.find_spec("wasmtime")
    if spec is None or spec.origin is None:
        return None
    sys.path.insert(0, str(ROOT / "src/warmcell/guest"))
    try:
        from wasm import forked
    finally:
        sys.path.remove(str(ROOT / "src/warmcell/guest"))
    package = Path(spec.origin).parent
    content = split_declarations((package / "_bindings.py").read_text(), (package / "_ffi.py").read_text())
    if content is None:
        return None
    path = directory / forked.NAME
    forked.write(str(path), str(package), content)
    return path


def split_declarations(bindings: str, user: str) -> dict[str, object] | None:
    """The statements and the dependencies of each name. None if a statement does not declare a name."""
    tree = ast.parse(bindings)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    runs: list[tuple[str, list[ast.stmt]]] = []
    for node in tree.body[len(imports) :]:
        name = _declares(node)
        if name is None:
            return None
        if runs and runs[-1][0] == name:
            runs[-1][1].append(node)
        else:
            runs.append((name, [node]))
    known = {name for name, _ in runs}
    needs: dict[str, set[str]] = {name: set() for name in known}
    for number, (name, nodes) in enumerate(runs):
        needs[name].update([str(number)], *(_mentions(node) & known - {name} for node in nodes))
    codes = [_compile(nodes) for _, nodes in runs]
    return {
        "imports": _compile([*imports]),
        "code": b"".join(codes),
        "ends": array.array("I", itertools.accumulate(map(len, codes), initial=0)).tobytes(),
        "named": {name: " ".join(sorted(needed)) for name, needed in needs.items()},
        "at_once": tuple(sorted(_mentions(ast.parse(user)) & known)),
    }


def _declares(node: ast.stmt) -> str | None:
    """A function is declared by several statements; the first assigns its name with an underscore."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(target, ast.Attribute):
        target = target.value
    return target.id.removeprefix("_") if isinstance(target, ast.Name) else None


def _mentions(node: ast.AST) -> set[str]:
    return {found.id.removeprefix("_") for found in ast.walk(node) if isinstance(found, ast.Name)}


def _compile(nodes: list[ast.stmt]) -> bytes:
    return marshal.dumps(compile(ast.Module(nodes, []), "_bindings.py", "exec", dont_inherit=True))
