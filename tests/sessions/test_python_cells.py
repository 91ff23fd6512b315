"""What a Python cell may rely on, with the worker bare: no cage between the guest's files and the host's conversation."""

from __future__ import annotations

import base64
import json
import os
import select
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.helpers import until
from tests.sessions.bare import LIVE, Cells, python_worker, skip_time

from warmcell import errors
from warmcell.lifetime.run import Run
from warmcell.sessions.cell_results import DisplayData

pytestmark = pytest.mark.needs("linux")


@pytest.fixture(scope="module")
def shared() -> Iterator[Cells]:
    cells = Cells(python_worker())
    yield cells
    cells.close()


@pytest.fixture
def cells(shared: Cells) -> Cells:
    """One interpreter for all tests that do not end it: each uses names of its own."""
    return shared


@pytest.fixture
def own() -> Iterator[Cells]:
    cells = Cells(python_worker())
    yield cells
    cells.close()


def test_variables_functions_and_imports_stay(cells: Cells) -> None:
    cells("import math\na = 2\ndef twice(n): return n * 2")
    assert cells("twice(a) + math.floor(1.5)").value == "5"


def test_last_expression_is_the_value_and_underscore(cells: Cells) -> None:
    result = cells("b = 20\nb + 1")
    assert (result.value, result.stdout, result.error) == ("21", "", None)
    assert result.outputs == [DisplayData({"text/plain": "21"}, is_result=True)]
    assert cells("_ * 2").value == "42"
    assert cells("b = 3").value is None
    assert cells("None").value is None
    assert cells("b;").value is None


def test_a_cell_of_one_line_has_a_value_where_it_is_an_expression(cells: Cells) -> None:
    lines: list[tuple[str, str | None]] = [
        ("one_line = 5", None),
        ("one_line == 5", "True"),
        ("one_line += 1", None),
        ("one_line: int = 6", None),
        ("(lambda number=3: number)()", "3"),
        ("(lambda: 1, lambda number=3: 2)[1]()", "2"),
        ("lambda number=3: number", "<function"),
        ("for number in range(3): number", None),
        ("if one_line: one_line", None),
        ("one_line != 5  # a comment", "True"),
        ("# nothing else", None),
        ("import asyncio", None),
        ("await asyncio.sleep(0, 'waited')", "'waited'"),
        ("waited = await asyncio.sleep(0, 'waited')", None),
        ("!true", None),
        ("%time one_line", "6"),
        ("'a;b'", "'a;b'"),
        ("one_line\n", "6"),
    ]
    for line, value in lines:
        result = cells(line)
        assert result.error is None, (line, result.error)
        assert result.value is None if value is None else (result.value or "").startswith(value), line


def test_output_is_whole_when_the_cell_ends(cells: Cells) -> None:
    result = cells("import sys, os\nprint('out')\nos.write(1, b'raw')\nprint('err', file=sys.stderr);")
    assert result.stdout == "out\nraw"
    assert result.stderr == "err\n"
    big = cells("print('x' * 300_000)")
    assert len(big.stdout) == 300_001 and not big.stdout_truncated


def test_output_over_the_cap_is_cut(cells: Cells) -> None:
    result = cells("print('y' * 5000)", most_bytes=1000)
    assert result.stdout == "y" * 1000 and result.stdout_truncated and not result.stderr_truncated


def test_top_level_await_on_one_loop_that_goes_on(cells: Cells) -> None:
    cells(
        "import asyncio\nqueue = asyncio.Queue()\nasync def feed():\n    await asyncio.sleep(0.01)\n    await queue.put(7)"
    )
    cells("task = asyncio.create_task(feed()) if False else None")
    assert cells("await asyncio.sleep(0)\ntask = asyncio.get_running_loop().create_task(feed())").error is None
    assert cells("await queue.get()").value == "7"
    assert cells("[await asyncio.sleep(0, n) for n in range(3)]").value == "[0, 1, 2]"
    assert cells("asyncio.run(asyncio.sleep(0, 5))").value == "5"


def test_tasks_go_on_between_cells(cells: Cells) -> None:
    cells(
        "import asyncio\nticks = []\nasync def tick():\n    while True:\n        ticks.append(1)\n        await asyncio.sleep(0.01)"
    )
    cells("await asyncio.sleep(0)\nticking = asyncio.get_running_loop().create_task(tick())")
    deadline = time.monotonic() + 60
    while int(cells("len(ticks)").value or 0) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert int(cells("ticking.cancel()\nlen(ticks)").value or 0) >= 5


def test_traceback_has_the_cells_lines_and_none_of_ours(cells: Cells) -> None:
    result = cells("def fail(n):\n    return 1 / n\n\nfail(0)")
    assert result.error is not None
    assert (result.error.name, result.error.message) == ("ZeroDivisionError", "division by zero")
    text = result.error.traceback
    assert ", line 4, in <module>\n    fail(0)" in text and ", line 2, in fail\n    return 1 / n" in text
    assert LIVE not in text and "asyncio" not in text
    later = cells("fail(0)").error  # a function of an earlier cell still has its source
    assert later is not None and "return 1 / n" in later.traceback
    awaited = cells("async def bad():\n    raise KeyError('k')\nawait bad()").error
    assert awaited is not None and "base_events" not in awaited.traceback and "raise KeyError('k')" in awaited.traceback


def test_syntax_errors_point_into_the_cell(cells: Cells) -> None:
    error = cells("c = 1\nif True print(2)").error
    assert error is not None and error.name == "SyntaxError"
    assert "line 2" in error.traceback and "if True print(2)" in error.traceback and LIVE not in error.traceback


def test_nothing_runs_of_a_cell_that_is_not_python(cells: Cells) -> None:
    assert cells("print('before')\nreturn 3").stdout == ""


def test_exceptions_that_cannot_be_shown_are_told(cells: Cells) -> None:
    error = cells("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd").error
    assert error is not None and error.name == "Odd" and "__str__" in error.message


def test_exit_is_an_error_of_the_cell(cells: Cells) -> None:
    for code in ("import sys; sys.exit(3)", "exit(3)", "raise SystemExit(3)"):
        error = cells(code).error
        assert error is not None and (error.name, error.message) == ("SystemExit", "3")
    assert cells("input is not None").value == "True"


def test_future_imports_stay(cells: Cells) -> None:
    cells("from __future__ import annotations")
    assert cells("def typed(x: not_there): pass\ntyped.__annotations__").value == "{'x': 'not_there'}"


def test_rich_displays(cells: Cells) -> None:
    cells(
        "class Rich:\n"
        "    def _repr_html_(self): return '<b>rich</b>'\n"
        "    def _repr_png_(self): return b'\\x89PNG'\n"
        "    def _repr_json_(self): return {'n': [1, 2]}\n"
        "    def _repr_latex_(self): return None\n"
        "    def _repr_svg_(self): raise ValueError('no svg')\n"
        "    def __repr__(self): return 'Rich()'\n"
    )
    result = cells("Rich()")
    assert result.outputs[0].mime == {
        "text/html": "<b>rich</b>",
        "image/png": base64.b64encode(b"\x89PNG").decode(),
        "application/json": {"n": [1, 2]},
        "text/plain": "Rich()",
    }
    assert result.value == "Rich()" and "no svg" in result.stderr
    cells("class Bundle:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/x': 'y'}, {}")
    assert cells("Bundle()").outputs[0].mime["text/x"] == "y"


def test_an_object_that_invents_attributes_is_only_text(cells: Cells) -> None:
    result = cells("from unittest.mock import MagicMock\nMagicMock()")
    assert list(result.outputs[0].mime) == ["text/plain"]


def test_display_update_and_clear(cells: Cells) -> None:
    result = cells("handle = display('a', display_id=True)\nprint('between')\nhandle.update('b')\ndisplay(1, 2)")
    assert [output.text for output in result.outputs] == ["'b'", "1", "2"]
    later = cells("handle.update('c')").outputs
    assert [(output.text, output.is_update) for output in later] == [("'c'", True)]
    cleared = cells("print('gone'); display('gone')\nclear_output()\nprint('kept')")
    assert (cleared.stdout, cleared.outputs) == ("kept\n", [])


def test_long_displays_come_whole(cells: Cells) -> None:
    result = cells("'\\U0001f600' * 600_000")
    assert result.value == repr("\U0001f600" * 600_000)


def test_a_form_that_is_too_large_is_left_out_and_reported(cells: Cells) -> None:
    large = "class Large:\n    def __repr__(self): return 'short'\n    def _repr_html_(self): return 'x' * (17 << 20)\n"
    for last in ("display(Large())", "Large()"):
        cell = cells(large + last)
        assert [list(output.mime) for output in cell.outputs] == [["text/plain"]] and cell.outputs_truncated
    assert not cells("display(1)").outputs_truncated


def test_no_half_of_a_form_is_shown(cells: Cells) -> None:
    """The displays of a cell share 32 MiB."""
    cell = cells("for _ in range(4): display({'text/html': 'x' * (10 << 20), 'text/plain': 'y'}, raw=True)")
    sizes = [len(output.mime.get("text/html", "")) for output in cell.outputs]
    assert sizes == [10 << 20] * 3 + [0] and cell.outputs_truncated


@pytest.mark.parametrize("name", ["stdout", "stderr", "stdin", "__stdout__"])
def test_a_deleted_stream_is_there_again_in_the_next_cell(cells: Cells, name: str) -> None:
    assert cells(f"import sys; del sys.{name}").error is None
    assert cells("print('out'); print('err', file=sys.stderr)").stdout == "out\n"


def test_displays_and_text_come_in_order(cells: Cells) -> None:
    heard: list[str] = []
    cells(
        "for i in range(3):\n    print('p', i)\n    display(i)",
        on_stdout=lambda text: heard.append(text.strip()),
        on_display=lambda shown: heard.append(shown.text),
    )
    assert heard == ["p 0", "0", "p 1", "1", "p 2", "2"]


def test_names_of_notebooks(cells: Cells) -> None:
    assert cells("import IPython\nIPython.version_info[:2] >= (8, 24)").value == "True"  # matplotlib asks
    result = cells("from IPython.display import HTML, Markdown, display\ndisplay(HTML('<i>x</i>'), Markdown('*x*'))")
    assert [output.mime.get("text/html") or output.mime.get("text/markdown") for output in result.outputs] == [
        "<i>x</i>",
        "*x*",
    ]


_STAND_INS = """
import sys, types
for name in ("matplotlib", "matplotlib.figure", "matplotlib._pylab_helpers", "plotly", "plotly.basedatatypes"):
    sys.modules[name] = types.ModuleType(name)
class Figure:
    __module__, __qualname__ = "matplotlib.figure", "Figure"
    class canvas:
        print_png = True
    def __init__(self, name): self.name = name; self.canvas = types.SimpleNamespace(print_png=True, figure=self)
    def savefig(self, file, format, bbox_inches): file.write(b"PNG:" + self.name.encode())
    def get_axes(self): return []
class BaseFigure:
    __module__, __qualname__ = "plotly.basedatatypes", "BaseFigure"
    def to_json(self): return '{"data": [{"y": [1, 2]}], "layout": {}}'
class Gcf:
    open = []
    @classmethod
    def get_all_fig_managers(cls): return list(cls.open)
    @classmethod
    def destroy(cls, manager): cls.open.remove(manager)
sys.modules["matplotlib._pylab_helpers"].Gcf = Gcf
def figure(name):
    made = Figure(name)
    Gcf.open.append(types.SimpleNamespace(canvas=made.canvas))
    return made
"""


def test_figures_of_matplotlib_and_plotly(own: Cells) -> None:
    own(_STAND_INS)

    def pictures(code: str) -> list[str]:
        shown = [output.mime.get("image/png") for output in own(code).outputs]
        return [base64.b64decode(str(data)).decode() for data in shown]

    assert pictures("made = figure('open')") == ["PNG:open"]
    assert pictures("pass") == []  # it was closed
    assert pictures("figure('result')") == ["PNG:result"]  # once, not again because it is open
    assert pictures("figure('one'); made = figure('two')") == ["PNG:one", "PNG:two"]
    plot = own("BaseFigure()").outputs[0].mime
    assert plot["application/vnd.plotly.v1+json"] == {"data": [{"y": [1, 2]}], "layout": {}}


def test_show_of_a_plotly_figure_is_a_display(own: Cells, tmp_path: Path) -> None:
    (tmp_path / "plotly").mkdir()
    (tmp_path / "plotly/__init__.py").touch()
    (tmp_path / "plotly/basedatatypes.py").write_text(
        "class BaseFigure:\n"
        "    def to_json(self): return '{}'\n"
        "    def show(self): raise OSError('there is no browser')\n"
    )
    result = own(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom plotly.basedatatypes import BaseFigure\nBaseFigure().show()"
    )
    assert result.error is None and "application/vnd.plotly.v1+json" in result.outputs[0].mime


@pytest.mark.parametrize("mime", ["application/json", "application/vnd.vegalite.v5+json"])
def test_json_without_numbers_that_json_does_not_have(own: Cells, mime: str) -> None:
    own("nan, infinite = float('nan'), float('inf')\nnested = {'a': nan, 'b': [infinite, {'c': -infinite}], nan: 1}")
    own("class Chart:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {mime: content}")
    own(f"mime = {mime!r}")
    expected = {"a": None, "b": [None, {"c": None}], "NaN": 1}
    assert own("content = nested; Chart()").outputs[0].mime[mime] == expected
    assert own("display({mime: nested}, raw=True)").outputs[0].mime[mime] == expected
    assert own("content = [nan, 1, infinite]; Chart()").outputs[0].mime[mime] == "[null, 1, null]"
    assert own("content = infinite; Chart()").outputs[0].mime[mime] == "null"
    assert own("content = 'NaN'; Chart()").outputs[0].mime[mime] == '"NaN"'
    # Above the host's bounds for data: it stays text.
    much = own("content = {'a': [nan] * 200_001}; Chart()").outputs[0].mime[mime]
    assert isinstance(much, str) and json.loads(much, parse_constant=refuse)["a"][:1] == [None]
    # An encoder of the guest's own writes an infinite number as digits.
    forged = own("import json\njson.dumps = lambda *_, **__: '{\"a\": -1e999}'\nChart()")
    assert forged.outputs[0].mime[mime] == {"a": None}


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_what_e2bs_kernel_does_is_done_where_that_is_said(cells: Cells, tmp_path: Path) -> None:
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL/__init__.py").touch()
    (tmp_path / "PIL/Image.py").write_text(
        "class Image:\n"
        "    def save(self, fp, format=None):\n"
        "        if fp == 'nowhere': raise OSError(fp)\n"
        "    def _repr_png_(self): self.save(object()); return b'PNG'\n"
    )
    find = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom PIL.Image import Image\nimage = Image()"
    data = "application/vnd.warmcell.value+json"
    said = Cells(python_worker(env={**os.environ, "E2B_SANDBOX": "true"}))
    try:
        said(find)
        assert [shown.mime["image/png"] for shown in said("image.save('a.png')").outputs] == ["UE5H"]
        failed = said("image.save('nowhere')")
        assert failed.error is not None and not failed.outputs
        dates = said("import datetime\n[{'day': datetime.date(2026, 1, 2), 3: (None, float('nan'))}]")
        assert dates.outputs[0].mime[data] == {"value": [{"day": "2026-01-02", "3": [None, None]}]}
        said("class Odd:\n    def tolist(self): raise RuntimeError('odd')")
        texts = ("[object()]", "[Odd()]", "{(1, 2): 3}", "(1, 2)", "'text'", "loop = []; loop.append(loop); loop")
        for other in (*texts, "[0] * 500_000"):
            assert list(said(other).outputs[0].mime) == ["text/plain"], other
    finally:
        said.close()
    assert list(cells("[1]").outputs[0].mime) == ["text/plain"]


def test_magics(cells: Cells, tmp_path: os.PathLike[str]) -> None:
    assert cells("word = 'hi'\n!echo $word {word.upper()} $HOME_NOT_THERE end").stdout == "hi HI end\n"
    assert cells("lines = !printf 'a\\nb\\n'\nlines").value == "['a', 'b']"
    assert cells("for i in range(2):\n    !echo n$i\nprint('py')").stdout == "n0\nn1\npy\n"
    assert cells("%%bash\nfor i in 1 2; do echo $i; done").stdout == "1\n2\n"
    failed = cells("%%bash\nexit 4").error
    assert failed is not None and "4" in failed.message
    timed = cells("%time sum(range(10))")
    assert timed.value == "45" and "wall time" in timed.stdout
    assert cells("%matplotlib inline\n5").value == "5"
    assert cells(f"%cd {tmp_path}\nimport os; os.getcwd()").value == repr(str(tmp_path))
    assert cells("%%writefile made.txt\nline\n").stdout == "Wrote made.txt\n"
    assert cells("open('made.txt').read()").value == "'line\\n'"


def test_magics_that_there_are_not_are_named(cells: Cells) -> None:
    for code, name in (("%load_ext autoreload", "%load_ext"), ("%%html\n<b>", "%%html")):
        error = cells(code).error
        assert error is not None and error.name == "NotImplementedError"
        assert f"{name} is not supported here" in error.message


def test_percent_and_bang_inside_of_python_stay(cells: Cells) -> None:
    assert cells("text = '''\n%pip\n!ls\n'''\nn = (7\n % 4)\n(text, n)").value == "('\\n%pip\\n!ls\\n', 3)"
    error = cells("!true\ndef broken(:\n    pass").error
    assert error is not None and error.name == "SyntaxError" and "line 2" in error.traceback


def test_input_asks_the_callback_or_ends(cells: Cells) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return f"answer {len(asked)}"

    result = cells("import sys\n(input('name? '), sys.stdin.readline())", on_input=answer)
    assert result.value == "('answer 1', 'answer 2\\n')" and asked == ["name? ", ""]
    error = cells("input()").error
    assert error is not None and error.name == "EOFError"
    unanswered = cells("input()", on_input=lambda prompt: None).error
    assert unanswered is not None and unanswered.name == "EOFError" and "returned None" in unanswered.message
    with pytest.raises(errors.InvalidRequest, match="on_input"):
        cells("input()", on_input=lambda prompt: 5)
    assert cells("1").value == "1"


def test_a_callback_that_raises_ends_the_cell_and_not_the_session(cells: Cells) -> None:
    def refuse(text: str) -> None:
        raise LookupError(text)

    with pytest.raises(LookupError, match="first"):
        cells("import time\nprint('first', flush=True)\ntime.sleep(60)", on_stdout=refuse)
    assert cells("2").value == "2"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "await __import__('asyncio').sleep(60)",
        "__import__('re').match('(a+)+b', 'a' * 60)",
    ],
)
def test_a_cell_past_its_time_is_interrupted_and_the_state_stays(
    cells: Cells, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells("kept = 11")
    skip = skip_time(monkeypatch)
    with pytest.raises(errors.ExecutionTimeout) as caught:
        cells(f"print('so far', flush=True)\n{code}", timeout=30, on_stdout=lambda text: skip())
    assert caught.value.timeout == 30
    assert caught.value.result is not None and caught.value.result.stdout == "so far\n"
    assert cells("kept").value == "11"


def test_interrupt_from_another_thread_is_a_keyboard_interrupt(cells: Cells) -> None:
    begun = threading.Event()
    timer = threading.Thread(target=lambda: begun.wait(20) and cells.talk.interrupts.request(is_awaited=False))
    timer.start()
    result = cells("import time\nprint('begun', flush=True)\ntime.sleep(60)", on_stdout=lambda text: begun.set())
    timer.join()
    assert result.error is not None and result.error.name == "KeyboardInterrupt"
    assert "in <module>" in result.error.traceback and LIVE not in result.error.traceback
    cells.talk.interrupts.request(is_awaited=False)  # nothing is under way: nothing happens, now or in the next cell
    assert cells("3").value == "3"


def test_a_signal_that_comes_after_its_cell_does_not_interrupt_the_next(
    own: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent of a cage sends it, perhaps later than the cell ends by itself."""
    send_now, sent = own.worker.interrupt, Future[None]()

    def send() -> None:
        send_now()
        sent.set_result(None)

    monkeypatch.setattr(own.worker, "interrupt", lambda: sent)
    code = "import time\nprint('begun', flush=True)\ntime.sleep(0.3)\n1"
    first = own(code, on_stdout=lambda text: own.talk.interrupts.request(is_awaited=False))
    assert first.value == "1" and not sent.done()
    timer = threading.Timer(0.5, send)
    timer.start()
    second = own("time.sleep(2)\n2")
    assert (second.value, second.error) == ("2", None)
    timer.join()


def test_an_interrupt_that_comes_before_the_cell_has_begun_is_not_lost(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal may be there before the worker has read the cell."""
    from tests.helpers import PATIENCE

    monkeypatch.setattr("warmcell.sessions.exchange.CANCEL_SECONDS", PATIENCE)
    assert cells("1").value == "1"  # the worker has started, and handles signals
    run = Run()
    run.cancel()
    from warmcell.core.types import DEFAULT_OUTPUT_BYTES
    from warmcell.lifetime.run import RunCancelled
    from warmcell.sessions.exchange import Listeners

    for _ in range(20):
        with pytest.raises(RunCancelled):
            cells.talk.run(run, "import time; time.sleep(1000)", 30, Listeners(), DEFAULT_OUTPUT_BYTES)
    # A lost interrupt would end in a kill, after the grace period.
    assert cells("4").value == "4"


def test_a_signal_that_is_lost_is_repeated(own: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one is that comes just before a call that blocks: it is noticed only after that call."""
    interrupt = own.worker.interrupt

    def lose_the_first(*, is_repeated: bool = False) -> None:
        if is_repeated:
            interrupt(is_repeated=True)

    monkeypatch.setattr(own.worker, "interrupt", lose_the_first)
    with pytest.raises(errors.ExecutionTimeout):
        own("kept = 12\nimport time\ntime.sleep(60)", timeout=1.5)
    assert own("kept").value == "12"


def test_a_repeated_signal_does_not_disturb_what_a_cell_does_about_the_first(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import time\ntry:\n    print('begun', flush=True)\n    {wait}\n"
    code += "except KeyboardInterrupt:\n    time.sleep(1)\n    print('cleaned up')"
    skip = skip_time(monkeypatch)
    for wait in ("time.sleep(60)", "while True: sum(range(100))"):
        with pytest.raises(errors.ExecutionTimeout) as caught:
            cells(code.format(wait=wait), timeout=30, on_stdout=lambda text: skip() if "begun" in text else None)
        assert caught.value.result is not None and caught.value.result.stdout == "begun\ncleaned up\n"


def test_a_cell_that_signals_itself_gets_every_interrupt(cells: Cells) -> None:
    code = "import signal\nfor _ in range(3):\n    try:\n        signal.raise_signal(signal.SIGINT)\n"
    code += "    except KeyboardInterrupt:\n        print('again')"
    assert cells(code).stdout == "again\n" * 3


def test_what_ignores_an_interrupt_is_killed(own: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.sessions.exchange.GRACE_SECONDS", 0.5)
    own("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    skip = skip_time(monkeypatch)
    deaf = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(60)"
    with pytest.raises(errors.SessionEnded, match="kept running for") as caught:
        own(deaf, timeout=30, on_stdout=lambda text: skip())
    assert caught.value.result is not None and caught.value.result.stdout == "deaf\n"
    with pytest.raises(errors.SessionEnded, match="kept running for"):
        own("1")


def test_a_handler_that_a_cell_left_behind_does_not_outlive_it(own: Cells) -> None:
    own("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    with pytest.raises(errors.ExecutionTimeout):
        own("time.sleep(60)", timeout=0.2)
    assert own("5").value == "5"


def test_forks_of_the_guest_never_speak_for_it(cells: Cells) -> None:
    code = (
        "import os, sys, ctypes\n"
        "fork = {fork}\n"
        "pid = fork()\n"
        "if pid == 0:\n"
        "    display('from the fork')\n"
        "    print('child prints')\n"
        "    raise ValueError('child')\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    for fork in ("os.fork", "ctypes.CDLL(None).fork"):
        result = cells(code.format(fork=fork))
        assert result.value == "1" and [output.text for output in result.outputs] == ["1"]
        assert "child prints" in result.stdout and "ValueError: child" in result.stderr and LIVE not in result.stderr
    assert (
        cells(
            "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os; os.write(3, b\"x\")']).returncode"
        ).value
        == "1"
    )


def test_a_crash_ends_the_session_with_what_was_printed(own: Cells) -> None:
    with pytest.raises(errors.SessionEnded, match="status -6") as caught:
        own("print('last words', flush=True)\nimport os; os.abort()")
    assert caught.value.result is not None and caught.value.result.stdout == "last words\n"
    assert caught.value.fault == "guest"
    with pytest.raises(errors.SessionEnded):
        own("1")


def test_variables_are_short_texts_without_modules(own: Cells) -> None:
    own(
        "import os\nn, text, _hidden = 1, 'x' * 5000, 2\nclass Bad:\n    def __repr__(self): raise ValueError\nbad = Bad()"
    )
    found = own.variables()
    assert found["n"] == "1" and len(found["text"]) == 1000 and "ValueError" in found["bad"]
    assert "os" not in found and "_hidden" not in found
    assert own("n").execution_count == 2  # a look is no cell
    own("many = {}\nfor i in range(5000): globals()[f'name{i}'] = '\\U0001f600' * 400")
    assert 10 < len(own.variables()) < 5000


def test_long_code_arrives_whole(cells: Cells) -> None:
    assert cells(f"long = '{'é' * 1_500_000}'\nlen(long)").value == "1500000"


def test_output_between_cells_comes_with_the_next_one(cells: Cells, tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"    while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    cells(f"import threading, os, time\ndef write():\n{wait}    os.write(1, b'late')")
    first = cells("later = threading.Thread(target=write)\nlater.start()")
    go.touch()
    until(lambda: select.select([cells.worker.stdout], [], [], 0)[0])
    assert "late" not in first.stdout and "late" in cells("later.join()").stdout
