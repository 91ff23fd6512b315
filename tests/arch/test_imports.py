"""The import law, and what the trusted rooms may be made of."""

from __future__ import annotations

import ast
import configparser
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "warmcell"
#: Files of the guest that the host imports as well: they define what the two say to each other.
PROTOCOLS = {"warmcell.guest.wasm.protocol", "warmcell.guest.live.frames"}
#: Modules of rooms above that are loaded by name, as a plug-in would be: the import law does not see them.
UPWARD_BY_NAME = {
    "sandbox/asynchronous.py": {"warmcell.interfaces.client.cluster_sandbox"},  # the driver of `backend="ray"`
    "images/build/steps.py": {"warmcell.backends.process.image_build"},  # carries out the steps of a Dockerfile
    "backends/ray/node_service.py": {  # a node serves sandboxes and examines itself
        "warmcell.diagnosis.doctor",
        "warmcell.interfaces.serve.cluster.node_server",
        "warmcell.interfaces.serve.node_server",
    },
}
LINT = shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or shutil.which("lint-imports")


def modules(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every import in a file as (level, module), wherever it stands, apart from those for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checked_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in checked_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


def test_a_room_imports_only_rooms_below_it() -> None:
    assert LINT, "import-linter is not installed"
    command = [LINT, "--config", str(ROOT / ".importlinter"), "--no-cache"]
    ended = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_rooms_above_are_loaded_by_name_in_three_places_only() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    layers = config["importlinter:contract:rooms"]["layers"].split()
    heights = {room.strip("()"): -number for number, room in enumerate(layers)}
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE)
        for name in modules_named_in(path):
            if file.parts[0] in heights and heights.get(name.split(".")[1], 0) > heights[file.parts[0]]:
                found.setdefault(str(file), set()).add(name)
    assert found == UPWARD_BY_NAME


def modules_named_in(path: Path) -> Iterator[str]:
    """The modules of ours that stand in its strings, as `module` or `module:name`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("warmcell."):
            module = node.value.partition(":")[0]
            if (SOURCE.parent / f"{module.replace('.', '/')}.py").is_file():
                yield module


@pytest.mark.parametrize("room", ["core", "policy"])
def test_words_and_policies_need_the_standard_library_only(room: str) -> None:
    for path in modules(room):
        for level, name in imports_of(path):
            top = name.partition(".")[0]
            assert level or top == "warmcell" or top in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_the_cage_is_made_of_the_standard_library_and_itself() -> None:
    assert modules("cage")
    for path in modules("cage"):
        for level, name in imports_of(path):
            depth = len(path.relative_to(SOURCE / "cage").parts)
            assert level <= depth, f"{path.name} imports from outside the cage"
            # `python -I -S <directory>` starts __main__ as a script: there "cage" is the package's own name.
            own = {"cage"} if path.name == "__main__.py" else set()
            assert level or name.partition(".")[0] in sys.stdlib_module_names | own, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", modules("cage"), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_cage_runs_under_old_interpreters(path: Path) -> None:
    """The child runs under the guest's interpreter, which may be older than ours."""
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Match), f"match at line {node.lineno}"
        if isinstance(node, ast.Call):
            assert not any(word.arg in {"strict", "slots", "kw_only"} for word in node.keywords), (
                f"a keyword of Python 3.10 at line {node.lineno}"
            )
    unions = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    if any(_is_type(node.left) and _is_type(node.right) for node in unions):
        assert "annotations" in path.read_text(encoding="utf-8"), "X | Y needs 'from __future__ import annotations'"


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def test_the_host_imports_only_protocols_from_the_guest() -> None:
    """The package may be imported to find its directory. A protocol file is shared, and standard library only."""
    for path in SOURCE.rglob("*.py"):
        for _, name in imports_of(path):
            is_allowed = not name.startswith("warmcell.guest.") or name in PROTOCOLS
            assert is_allowed, f"{path.relative_to(SOURCE)} imports {name}"
    for module in PROTOCOLS:
        for level, name in imports_of(SOURCE.parent / f"{module.replace('.', '/')}.py"):
            assert not level and name.partition(".")[0] in sys.stdlib_module_names, f"{module} imports {name}"


def test_what_runs_inside_imports_nothing_of_ours() -> None:
    for path in modules("guest"):
        for _, name in imports_of(path):
            assert name.partition(".")[0] != "warmcell", f"{path.name} imports {name}"


def test_nobody_waits_in_a_way_that_forgets_being_cancelled() -> None:
    """`asyncio.wait_for` of 3.11 returns where what it waits for is done by then; `asyncio.timeout` does not."""
    users = [path.name for path in SOURCE.rglob("*.py") if "asyncio.wait_for" in path.read_text()]
    assert users == []
