"""No import circles in the package: type-checking imports and imports inside functions count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"

Graph = dict[str, set[str]]


def package_modules() -> dict[str, Path]:
    """Every module but the guest's, which runs inside the cage and imports by other names."""
    paths = [path for path in (SOURCE / "warmcell").rglob("*.py") if "guest" not in path.relative_to(SOURCE).parts[:2]]
    return {module_name(path): path for path in sorted(paths)}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(modules: dict[str, Path]) -> Graph:
    return {name: set(imports_of(name, path, modules)) - {name} for name, path in modules.items()}


def imports_of(name: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, node.module] if node.module else above)
            for alias in node.names:
                yield from [full for full in (f"{module}.{alias.name}", module) if full in modules][:1]


def find_circles(graph: Graph) -> list[set[str]]:
    """Sets of modules that can all reach each other."""
    reach = {name: _reachable(name, graph) for name in graph}
    circles = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return [set(circle) for circle in circles if circle]


def _reachable(start: str, graph: Graph) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def test_no_module_imports_itself_through_others() -> None:
    circles = find_circles(import_graph(package_modules()))
    assert not circles, list(map(sorted, circles))


@pytest.mark.parametrize(
    ("graph", "circles"),
    [
        ({"a": {"b"}, "b": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [{"a", "b"}]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}, [{"a", "b", "c"}, {"d", "e"}]),
    ],
)
def test_circles_are_found(graph: Graph, circles: list[set[str]]) -> None:
    assert sorted(map(sorted, find_circles(graph))) == sorted(map(sorted, circles))


def test_type_checking_and_local_imports_count(tmp_path: Path) -> None:
    source = tmp_path / "b.py"
    source.write_text("if TYPE_CHECKING:\n    from p.a import A\ndef f():\n    from . import c\n    import p.d\n")
    known = {f"p.{name}": source for name in "abcd"}
    assert set(imports_of("p.b", source, known)) == {"p.a", "p.c", "p.d"}
