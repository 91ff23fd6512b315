"""The asynchronous form of E2B's synchronous tests, which no package carries: derived from them. Run by scripts/test-e2b.

    python e2b_suite_async.py SUITE TARGET    writes TARGET/tests/async beside what both forms share

Every test becomes `async def`, every call in it goes through `call`, which awaits what can be awaited; loops and `with`
go through `each` and `enter`. Functions inside tests, lambdas and generator expressions are callbacks and stay, as do
the functions of the module that they use.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

HELP = "from e2b_suite_help import call, closing, each, enter\n"
ASYNCHRONOUS = {
    name: f"Async{name}" for name in ("Sandbox", "CommandHandle", "WatchHandle", "Secret", "SecretPaginator", "Volume")
}
#: What stand-ins inside tests replace in the SDK, by its name in the asynchronous one.
ATTRIBUTES = {"set_httpx_client": "set_async_httpx_client", "Client": "AsyncClient"}
FIXTURES = """
import pytest


@pytest.fixture()
def sandbox_factory(async_sandbox_factory):
    return async_sandbox_factory


@pytest.fixture()
def sandbox(async_sandbox):
    return async_sandbox


@pytest.fixture()
def volume(async_volume):
    return async_volume
"""


class Body(ast.NodeTransformer):
    """What stands in a test, once that is a coroutine."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "close":
            function = _call("closing", function.value)
        return ast.Await(ast.Call(ast.Name("call", ast.Load()), [function, *node.args], node.keywords))

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        return ast.AsyncFor(node.target, _call("each", node.iter), node.body, node.orelse)

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        items = [ast.withitem(_call("enter", item.context_expr), item.optional_vars) for item in node.items]
        return ast.AsyncWith(items, node.body)


class StandIn(ast.NodeTransformer):
    """The HTTP clients that callbacks make."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = ATTRIBUTES.get(node.attr, node.attr)
        return node


class Module(ast.NodeTransformer):
    """The functions of a module, except those named in `unchanged`, and what it imports."""

    def __init__(self, unchanged: set[str]) -> None:
        self._unchanged = unchanged

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if node.name in self._unchanged:
            return node
        body = [Body().visit(statement) for statement in node.body]
        return ast.AsyncFunctionDef(node.name, node.args, body, node.decorator_list, node.returns)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module == "time":
            node.module = "asyncio"
        elif node.module == "e2b":
            for name in node.names:
                if name.name in ASYNCHRONOUS:
                    name.name, name.asname = ASYNCHRONOUS[name.name], name.asname or name.name
        elif node.module is not None:
            node.module = _asynchronous_module(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        for name in node.names:
            if name.name == "time":
                name.name, name.asname = "asyncio", "time"
            name.name = _asynchronous_module(name.name)
        return node


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _asynchronous_module(name: str) -> str:
    return re.sub(r"^(e2b\.(?:sandbox|volume\.volume|secret\.secret))_sync", r"\1_async", name)


def _callbacks(tree: ast.Module) -> list[ast.AST]:
    """Functions inside functions."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    outer = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return [inner for node in outer for inner in ast.walk(node) if inner is not node and isinstance(inner, kinds)]


def asynchronous(source: str) -> str:
    tree = ast.parse(source)
    callbacks = [StandIn().visit(node) for node in _callbacks(tree)]
    used = {node.id for callback in callbacks for node in ast.walk(callback) if isinstance(node, ast.Name)}
    return HELP + ast.unparse(ast.fix_missing_locations(Module(used).visit(tree)))


def main(suite: Path, target: Path) -> None:
    (target / "tests").mkdir(parents=True)
    shutil.copyfile(suite / "pytest.ini", target / "pytest.ini")
    for path in [*(suite / "tests").glob("*.py"), Path(__file__).with_name("e2b_suite_help.py")]:
        shutil.copyfile(path, target / "tests" / path.name)
    for path in sorted((suite / "tests/sync").rglob("test_*.py")):
        made = target / "tests/async" / path.relative_to(suite / "tests/sync")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(asynchronous(path.read_text()))
    (target / "tests/async/conftest.py").write_text(FIXTURES)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
