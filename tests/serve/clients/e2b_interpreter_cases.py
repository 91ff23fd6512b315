"""E2B's code interpreter SDK, unmodified: cells, contexts, languages, results and charts. Run by scripts/test-e2b.

Charts need a guest that has matplotlib, and TypeScript a Node that runs it: tried before anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from e2b import SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox


def _runs(language: str, code: str) -> bool:
    with Sandbox.create(timeout=120) as probe:
        try:
            return probe.run_code(code, language=language).error is None
        except SandboxException:
            return False


needs_science = pytest.mark.skipif(
    not _runs("python", "import matplotlib, pandas, PIL"), reason="needs a guest with matplotlib, pandas and pillow"
)
needs_types = pytest.mark.skipif(not _runs("ts", "1"), reason="needs a Node.js 22.18 or newer that guests can see")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(timeout=600, envs={"A": "b"}) as made:
        yield made


@pytest.fixture(scope="module")
def draw(sandbox: Sandbox) -> Any:
    def draw_chart(code: str) -> Any:
        done = sandbox.run_code(f"import matplotlib.pyplot as plt, numpy as np\n{code}\nplt.show()")
        assert done.error is None, done.error
        assert done.results[0].png and done.results[0].text
        return done.results[0].chart

    return draw_chart


def test_cells(sandbox: Sandbox) -> None:
    assert sandbox.run_code("x = 1").text is None
    assert sandbox.run_code("x += 1; x").text == "2"
    assert sandbox.run_code("'text'").text == "text"
    assert sandbox.run_code("[1, {'a': None}]").results[0].json == [1, {"a": None}]
    assert sandbox.run_code("\n    y = 3\n    y\n").text == "3"
    assert "".join(sandbox.run_code("!pwd").logs.stdout).strip() == "/home/user"
    before, after = sandbox.run_code("1").execution_count, sandbox.run_code("1", envs={"Q": "q"}).execution_count
    assert after == before + 1


def test_callbacks(sandbox: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    code = "import sys\nprint(1)\nprint(2, file=sys.stderr)"
    done = sandbox.run_code(
        code, on_stdout=lambda said: out.append(said.line), on_stderr=lambda said: err.append(said.line)
    )
    assert (out, err) == (done.logs.stdout, done.logs.stderr) == (["1\n"], ["2\n"])
    errors: list[str] = []
    failed = sandbox.run_code("xyz", on_error=lambda error: errors.append(error.name))
    assert failed.error.name == errors[0] == "NameError" and "xyz" in failed.error.traceback


def test_forms_of_results(sandbox: Sandbox) -> None:
    code = "from IPython.display import display\ndisplay({'text/latex': r'\\text{x}'}, raw=True)"
    assert list(sandbox.run_code(code).results[0].formats()) == ["latex"]
    shown = sandbox.run_code("class H:\n    def _repr_html_(self): return '<b>h</b>'\nH()").results[0]
    assert shown.html == "<b>h</b>" and shown.is_main_result


@pytest.mark.parametrize(
    ("language", "code", "text"),
    [
        ("python", "import os; print(os.environ.get({0!r}, 'none'))", None),
        ("bash", "echo ${{{0}:-none}}", None),
        ("js", "process.env.{0} ?? 'none'", "value"),
        pytest.param("ts", "const found: string = process.env.{0} ?? 'none'; found", "value", marks=needs_types),
    ],
)
def test_variables(sandbox: Sandbox, language: str, code: str, text: str | None) -> None:
    """Of the sandbox, of one cell, and of the sandbox again."""

    def read_variable(name: str, **more: Any) -> str:
        done = sandbox.run_code(
            code.format(name).replace("found", f"found{len(more)}{name}"), language=language, **more
        )
        return str(done.text if text else "".join(done.logs.stdout).strip())

    assert read_variable("A") == "b" and read_variable("FOO") == "none" if language != "ts" else True
    assert read_variable("A", envs={"A": "other"}) == "other"
    assert read_variable("FOO", envs={"FOO": "bar"}) == "bar"
    assert sandbox.run_code("echo ${A}${FOO-none}", language="bash").logs.stdout == ["bnone\n"]


@pytest.mark.parametrize("language", ["javascript", pytest.param("typescript", marks=needs_types)])
def test_javascript(sandbox: Sandbox, language: str) -> None:
    context = sandbox.create_code_context(language=language, cwd="/home")
    assert sandbox.run_code("process.cwd()", context=context).text == "/home"
    assert sandbox.run_code("console.log('hi')", context=context).logs.stdout == ["hi\n"]
    sandbox.run_code("const kept = (x, y) => x + y", context=context)
    assert sandbox.run_code("kept(1, 2)", context=context).text == "3"
    assert sandbox.run_code("import { basename } from 'node:path'\nbasename('/a/b')", context=context).text == "b"
    assert sandbox.run_code("async function f() { return 'waited' }\nawait f()", context=context).text == "waited"
    assert sandbox.run_code("throw new TypeError('no')", context=context).error.name == "TypeError"


@needs_types
def test_types(sandbox: Sandbox) -> None:
    code = "function less(x: number, y: number): number {\n  return x - y\n}\nless(1, 2)"
    assert sandbox.run_code(code, language="ts").text == "-1"
    assert sandbox.run_code("const wrong: = 3", language="ts").error.name == "SyntaxError"
    assert sandbox.run_code("Deno.env.get('A')", language="deno").text == "b"
    assert sandbox.run_code("typeof Deno", language="ts").text == "undefined"


def test_contexts(sandbox: Sandbox) -> None:
    assert {"python", "javascript"} <= {context.language for context in sandbox.list_code_contexts()}
    one, two = sandbox.create_code_context(), sandbox.create_code_context(language="python", cwd="/home/user/test")
    sandbox.run_code("x = 'one'", context=one)
    assert sandbox.run_code("x", context=two).error.name == "NameError"
    assert sandbox.run_code("import os; os.getcwd()", context=two).text == "/home/user/test"
    assert sandbox.list_code_contexts()[-1].cwd == "/home/user/test"
    sandbox.restart_code_context(one)
    assert sandbox.run_code("x", context=one).error.name == "NameError"
    sandbox.remove_code_context(two)
    assert two.id not in [context.id for context in sandbox.list_code_contexts()]


def test_a_client_that_gives_up_interrupts_its_cell(sandbox: Sandbox) -> None:
    sandbox.run_code("kept = 7")
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time; time.sleep(60)", timeout=2)
    assert sandbox.run_code("kept", timeout=30).text == "7"


def test_reconnecting(sandbox: Sandbox) -> None:
    sandbox.run_code("remembered = 'yes'")
    assert Sandbox.connect(sandbox.sandbox_id).run_code("remembered").text == "yes"


def test_a_sandbox_that_is_killed_under_a_cell() -> None:
    async def main() -> None:
        made = await AsyncSandbox.create(timeout=120)
        begun = asyncio.Event()
        code = "print(1)\nimport time; time.sleep(60)"
        cell = asyncio.ensure_future(made.run_code(code, on_stdout=lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), 30)
        await made.kill()
        with pytest.raises(TimeoutException, match="killed while the request was in progress"):
            await asyncio.wait_for(cell, 30)

    asyncio.run(main())


@needs_science
def test_bars(draw: Any) -> None:
    chart = draw("plt.bar(['a', 'b'], [1, 2]); plt.xlabel('A'); plt.ylabel('N (kg)'); plt.title('T')")
    assert (chart.type.value, chart.title, chart.x_label, chart.y_unit) == ("bar", "T", "A", "kg")
    assert [(bar.label, bar.value) for bar in chart.elements] == [("a", 1), ("b", 2)]
    lying = draw("plt.barh(['a', 'b'], [1, 2]); plt.ylabel('A')")
    assert lying.x_label == "A" and [(bar.label, bar.value) for bar in lying.elements] == [("a", 1), ("b", 2)]
    beside = "x = np.arange(2); plt.bar(x - .2, [1, 2], .4, label='g'); plt.bar(x + .2, [3, 4], .4, label='h')"
    found = [(bar.label, bar.group, bar.value) for bar in draw(f"{beside}; plt.xticks(x, ['p', 'q'])").elements]
    assert found == [("p", "g", 1), ("q", "g", 2), ("p", "h", 3), ("q", "h", 4)]


@needs_science
def test_boxes(draw: Any) -> None:
    data = "values = [[85, 90, 78, 92, 88, 40], [95, 89, 76, 91, 84, 87]]; fig, ax = plt.subplots()\n"
    for more in ("tick_labels=['A', 'B']", "tick_labels=['A', 'B'], orientation='horizontal'"):
        chart = draw(f"{data}ax.boxplot(values, patch_artist=True, {more}); ax.set_title('t')")
        assert (chart.type.value, chart.title) == ("box_and_whisker", "t")
        one, two = chart.elements
        assert (one.label, one.outliers, two.label, two.median, two.min, two.max) == ("A", [40], "B", 88, 84, 95)
        assert (two.first_quartile, two.third_quartile) == (84.75, 90.5)


@needs_science
def test_lines(draw: Any) -> None:
    chart = draw(
        "x = np.linspace(0, 6, 100); plt.plot(x, np.sin(x), label='sin'); plt.plot(x, x); plt.xlabel('Time (s)')"
    )
    assert (chart.type.value, chart.x_unit, chart.x_scale, chart.y_scale) == ("line", "s", "linear", "linear")
    assert [(line.label, len(line.points)) for line in chart.elements] == [("sin", 100), ("Line 1", 100)]
    assert draw("plt.plot([1, 2, 3], [1, 10, 1000]); plt.yscale('log')").y_scale == "log"
    assert draw("plt.plot([1, 2, 3], ['A', 'B', 'C'])").y_scale == "categorical"
    dates = draw("import datetime; plt.plot([datetime.date(2023, 9, day) for day in (1, 2)], [1, 2])")
    assert dates.x_scale == "datetime" and dates.elements[0].points[0] == ("2023-09-01", 1)


@needs_science
def test_slices_points_and_others(draw: Any) -> None:
    pie = draw("plt.pie([90, 10], labels=['No', 'Blue'], autopct='%1.1f%%', startangle=90); plt.title('W')")
    assert [(one.label, one.angle, one.radius) for one in pie.elements] == [("No", 324, 1), ("Blue", 36, 1)]
    points = draw("plt.scatter([1, 2], [3, 4], label='D'); plt.scatter([5], [6])")
    assert points.type.value == "scatter" and points.elements[0].points == [(1, 3), (2, 4)]
    both = draw("fig, (a, b) = plt.subplots(1, 2); fig.suptitle('S'); a.plot([1, 2], [3, 4]); b.scatter([1], [2])")
    assert (both.title, [one.type.value for one in both.elements]) == ("S", ["line", "scatter"])
    assert draw("fig, ax = plt.subplots(); ax.add_artist(plt.Circle((0, 0), 1))").type.value == "unknown"
    assert draw("plt.figure()") is None


@needs_science
def test_tables_and_pictures(sandbox: Sandbox) -> None:
    table = sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2, None], 'b': ['x', 'y', 'z']})").results[0]
    assert table.html and table.data == {"a": [1, 2, None], "b": ["x", "y", "z"]}
    shown = sandbox.run_code("from PIL import Image\nimage = Image.new('RGB', (16, 16)); image.show(); print('shown')")
    assert shown.results[0].png and sandbox.run_code("image").results[0].png
    assert sandbox.run_code("image.save('saved.png')").results[0].png and sandbox.files.exists("saved.png")


@needs_science
def test_a_figure_comes_before_the_result(sandbox: Sandbox) -> None:
    heard: list[Any] = []
    sandbox.run_code("plt.plot([1, 2])\nplt.show()\n7", on_result=heard.append)
    assert [bool(result.png) for result in heard] == [True, False] and heard[1].text == "7"
