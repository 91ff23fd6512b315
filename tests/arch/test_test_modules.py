"""Rules for the test modules themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.helpers import PATIENCE

TESTS = Path(__file__).resolve().parents[1]
MODULES = sorted(TESTS.rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def name_of(path: Path) -> str:
    return str(path.relative_to(TESTS))


def test_no_module_imports_a_test_module() -> None:
    """Importing one runs its tests' set-up code twice and ties two files together: shared code goes into a helper module."""
    found = [
        f"{name_of(path)}:{node.lineno}: {node.module}"
        for path in MODULES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert not found


def test_a_room_has_one_directory() -> None:
    def rooms(directory: Path) -> set[str]:
        return {place.name for place in directory.iterdir() if any(place.glob("test_*.py"))}

    assert not rooms(TESTS) & rooms(TESTS / "unit")


#: Processes that are the program under test: a guest, or a script that a test starts.
FORKS_ON_PURPOSE = {
    "helpers.py",
    "siege/cases.py",
    "contract/scenario.py",
    "qemu/guest/main.py",
    "qemu/guest/payloads.py",
    "qemu/guest/checks.py",
}


def test_tests_fork_through_the_helper() -> None:
    """A bare `os.fork()` in a test is one exception away from a second pytest: use `fork_child`."""
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        if name_of(path) not in FORKS_ON_PURPOSE
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"os.fork", "pty.fork", "os.forkpty"}
    ]
    assert not found


@pytest.mark.parametrize("name", ["until", "eventually"])
def test_waiting_is_written_once(name: str) -> None:
    found = [
        name_of(path)
        for path in MODULES
        for node in parse(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.strip("_") == name
    ]
    assert found == ["helpers.py"]


#: Upper bounds on time that hold however loaded the machine is, with the reason.
BOUNDED_ON_PURPOSE = {
    "unit/cage/test_cage_small_parts.py": "the moment of the next look, which only comes nearer while the test waits",
}
CLOCKS = {"time.monotonic", "time.perf_counter", "time.time"}
DURATIONS = {"duration", "elapsed"}


def is_elapsed_time(node: ast.expr) -> bool:
    """`time.monotonic() - started`, or the duration of a run."""
    if isinstance(node, ast.Attribute):
        return node.attr in DURATIONS
    return isinstance(node, ast.BinOp) and any(
        isinstance(part, ast.Call) and ast.unparse(part.func) in CLOCKS for part in ast.walk(node)
    )


def short_bounds(tree: ast.AST) -> list[int]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            is_short = (
                isinstance(right, ast.Constant) and isinstance(right.value, int | float) and right.value < PATIENCE
            )
            if isinstance(operator, ast.Lt | ast.LtE) and is_elapsed_time(left) and is_short:
                found.append(node.lineno)
    return found


def test_no_test_fails_because_the_machine_is_slow() -> None:
    """Count something instead, or compare with PATIENCE what would otherwise take minutes; figures go to benchmarks/."""
    found = [
        f"{name_of(path)}:{line}"
        for path in MODULES
        if name_of(path) not in BOUNDED_ON_PURPOSE
        for line in short_bounds(parse(path))
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("assert time.monotonic() - began < 5", True),
        ("assert 0 <= result.duration < 5", True),
        ("assert time.monotonic() - began < PATIENCE", False),
        ("assert time.process_time() - began < 5", False),
        ("assert result.duration > 0.5", False),
    ],
)
def test_short_bounds_are_found(text: str, is_found: bool) -> None:
    assert bool(short_bounds(ast.parse(text))) is is_found
