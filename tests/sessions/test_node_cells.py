"""JavaScript cells as Node's REPL has them, with the worker bare."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sessions.bare import LIVE, Cells, node_worker

from warmcell import errors

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("node")]


@pytest.fixture(scope="module")
def cells() -> Iterator[Cells]:
    cells = Cells(node_worker())
    yield cells
    cells.close()


def test_declarations_stay_and_the_last_value_is_inspected(cells: Cells) -> None:
    cells("const one = 1; let two = 2; class Three {}; function four() { return 4 }; var five = 5")
    assert cells("one + two + four() + five").value == "12"
    assert cells("_ + 1").value == "13"
    assert cells("({a: [1, {b: 'x'}]})").value == "{ a: [ 1, { b: 'x' } ] }"
    assert cells("new Three()").value == "Three {}"
    assert cells("undefined").value is None and cells("let six = 6").value is None


def test_top_level_await(cells: Cells) -> None:
    assert cells("const waited = await new Promise(done => setTimeout(() => done(7), 10)); waited").value == "7"
    assert cells("waited + 1").value == "8"
    assert cells("(await import('path')).basename('/a/b')").value == "'b'"


def test_console_goes_to_the_streams(cells: Cells) -> None:
    result = cells("console.table([{a: 1}]); console.error('err'); process.stdout.write('é'.repeat(100_000)); 0")
    assert "│ (index) │ a │" in result.stdout and result.stdout.count("é") == 100_000
    assert result.stderr == "err\n"


def test_errors_have_the_cells_lines_and_none_of_ours(cells: Cells) -> None:
    error = cells("function bad() {\n  throw new TypeError('no')\n}\nbad()").error
    assert error is not None and (error.name, error.message) == ("TypeError", "no")
    assert "throw new TypeError('no')" in error.traceback and ":2" in error.traceback
    assert LIVE not in error.traceback and "node:" not in error.traceback
    syntax = cells("let broken = ;").error
    assert syntax is not None and syntax.name == "SyntaxError" and "let broken = ;" in syntax.traceback
    unfinished = cells("function (").error
    assert unfinished is not None and unfinished.name == "SyntaxError"
    thrown = cells("throw {plain: 1}").error
    assert thrown is not None and thrown.message == "{ plain: 1 }"
    rejected = cells("await Promise.reject(new RangeError('late'))").error
    assert rejected is not None and rejected.name == "RangeError"


def test_exit_is_an_error_of_the_cell(cells: Cells) -> None:
    error = cells("process.exit(3)").error
    assert error is not None and (error.name, error.message) == ("ProcessExit", "3")
    assert cells("1").value == "1"


def test_what_callbacks_raise_later_is_printed(cells: Cells) -> None:
    first = cells("setTimeout(() => { throw new Error('after') }, 1); Promise.reject(new Error('nobody')); 0")
    printed, deadline = first.stderr, time.monotonic() + 60
    while ("after" not in printed or "nobody" not in printed) and time.monotonic() < deadline:
        printed += cells("await new Promise(done => setTimeout(done, 20))").stderr
    assert "Error: after" in printed and "Error: nobody" in printed


@pytest.mark.parametrize("code", ["while (true) {}", "await new Promise(() => {})"])
def test_a_cell_past_its_time_is_interrupted_and_the_state_stays(cells: Cells, code: str) -> None:
    cells("var kept = 11")
    with pytest.raises(errors.ExecutionTimeout):
        cells(f"console.log('so far');\n{code}", timeout=0.7)
    assert cells("kept").value == "11"


def test_variables_and_long_values(cells: Cells) -> None:
    cells("const text = 'x'.repeat(5000); let list = [1, 2]")
    found = cells.variables()
    assert found["list"] == "[ 1, 2 ]" and len(found["text"]) == 1000 and "console" not in found
    assert len(cells("[...Array(100).keys()].map(n => 'é'.repeat(9000))").value or "") > 800_000
    assert cells(f"'{'ü' * 700_000}'.length").value == "700000"


def test_a_crash_ends_the_session() -> None:
    cells = Cells(node_worker())
    with pytest.raises(errors.SessionEnded):
        cells("process.kill(process.pid, 'SIGKILL')\nwhile (true) {}")
    cells.close()


def test_cells_begin_with_imports_as_modules_do(cells: Cells, tmp_path: Path) -> None:
    (tmp_path / "own.mjs").write_text("export default 1; export const two = 2, three = 3; globalThis.ran = 'it ran'")
    url = tmp_path.as_uri()
    many = (
        f"// first\nimport eins, {{\n  two as zwei,\n  three as drei,\n}} from '{url}/own.mjs'; /* then */ "
        f"import * as all from '{url}/own.mjs'\nimport\"{url}/own.mjs\"\nimport also, * as rest from '{url}/own.mjs'\n"
        "const poem = `\nimport nothing from 'this'\n`;\n"
        "[eins, zwei, drei, all.two, also, rest.three, ran, poem.split('\\n')[1]].join()"
    )
    assert cells(many).value == "\"1,2,3,2,1,3,it ran,import nothing from 'this'\""
    assert cells("eins + zwei + poem.length").value == "31"
    assert cells("import { existsSync } from 'node:fs'\nexistsSync('/')").value == "true"
    failed = cells("import fs from 'fs'\n\nthrow new Error('third line')").error
    assert failed is not None and "<cell" in failed.traceback and ":3" in failed.traceback
    missing = cells("import none from 'there-is-no-such-package'").error
    assert missing is not None and "there-is-no-such-package" in missing.message
    late = cells("1\nimport fs from 'fs'").error
    assert late is not None and late.name == "SyntaxError"


def test_names_of_deno_as_e2bs_contexts_are_given_them(cells: Cells) -> None:
    from warmcell.interfaces.serve.e2b.contexts import DENO

    assert cells(DENO).value is None
    assert cells("Deno.env.set('DENO_A', 'b'); [Deno.env.get('DENO_A'), process.env.DENO_A]").value == "[ 'b', 'b' ]"
    assert cells("[Deno.env.has('DENO_A'), Deno.env.toObject().DENO_A]").value == "[ true, 'b' ]"
    assert cells("Deno.env.delete('DENO_A'); [Deno.env.has('DENO_A'), Deno.env.get('DENO_A')]").value == (
        "[ false, undefined ]"
    )
    assert cells("Deno.cwd() === process.cwd()").value == "true"


def test_types_are_taken_out_of_cells(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("[4]")
    cells = Cells(node_worker("typescript"))
    try:
        assert cells("const less = (x: number, y: number): number => x - y").error is None
        found = cells("enum Kind { One = 4 }\nless(1, Kind.One) as number")
        assert (found.value, found.stderr) == ("-3", "")
        read = f"import type {{ Stats }} from 'fs'\nimport data from '{tmp_path}/data.json' with {{ type: 'json' }}"
        assert cells(f"{read}\nconst four: number = data[0]; four").value == "4"
        wrong = cells("const x: = 3").error
        assert wrong is not None and wrong.name == "SyntaxError"
    finally:
        cells.close()


def test_a_cell_whose_types_are_being_taken_out_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one takes long, because Node loads its compiler."""
    cells = Cells(node_worker("typescript"))
    may_end = tmp_path / "may_end"
    busy = f"code => {{ while (!require('fs').existsSync('{may_end}')); return code }}"
    interrupt = cells.worker.interrupt

    def interrupt_and_end(*, is_repeated: bool = False) -> None:
        interrupt(is_repeated=is_repeated)
        may_end.touch()

    monkeypatch.setattr(cells.worker, "interrupt", interrupt_and_end)
    try:
        assert cells(f"require('module').stripTypeScriptTypes = {busy}; 1").value == "1"
        with pytest.raises(errors.ExecutionTimeout):
            cells("2", timeout=0.5)
        assert cells("3").value == "3"
    finally:
        cells.close()
