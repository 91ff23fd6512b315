"""Figures, tables and images of the real libraries, in a real session. scripts/test-displays installs and runs them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator

import pytest

from warmcell import CellResult, ProcessConfig, Sandbox, Session

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """As a caller has it whose own environment has the packages."""
    config = ProcessConfig(python_path=sys.executable)
    with Sandbox(config=config, memory_limit_mb=2048, timeout=120, forkable=True) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session("python") as session:
        loaded = session.run(
            "import matplotlib.pyplot as plt, numpy as np, pandas as pd, plotly.express as px, PIL.Image"
        )
        assert loaded.error is None, loaded.error
        assert loaded.stderr == "", "fonts, caches, no place to write"
        yield session


def pictures(cell: CellResult) -> list[bytes]:
    assert cell.error is None, cell.error.traceback
    assert cell.stderr == ""
    return [base64.b64decode(str(shown.mime["image/png"])) for shown in cell.outputs if "image/png" in shown.mime]


def test_figures_come_when_they_are_shown(session: Session) -> None:
    heard: list[str] = []
    cell = session.run(
        "plt.plot([1, 3, 2])\nprint('before')\nplt.show()\nprint('after')",
        on_stdout=heard.append,
        on_display=lambda shown: heard.append("figure"),
    )
    assert [picture[:8] for picture in pictures(cell)] == [PNG]
    assert heard == ["before\n", "figure", "after\n"]


def test_figures_left_open_come_at_the_end_and_once(session: Session) -> None:
    assert len(pictures(session.run("fig, axes = plt.subplots(1, 2); axes[0].plot([3, 1]);"))) == 1
    assert len(pictures(session.run("first = plt.figure(); plt.plot([1]); second = plt.figure(); plt.plot([2]);"))) == 2
    assert len(pictures(session.run("figure, axes = plt.subplots()\naxes.bar([1, 2], [3, 4])\nfigure"))) == 1
    assert pictures(session.run("plt.get_fignums()")) == []


def test_frames_have_html_and_text(session: Session) -> None:
    (shown,) = session.run("frame = pd.DataFrame({'city': ['Oslo', 'Rome'], 'mm': [763, 799]})\nframe").outputs
    assert "<table" in str(shown.mime["text/html"]) and "Oslo" in str(shown.mime["text/html"])
    assert "Oslo" in str(shown.mime["text/plain"]) and shown.is_result
    (series,) = session.run("frame['mm']").outputs
    assert "799" in series.text and "text/html" not in series.mime
    assert len(pictures(session.run("frame.plot(x='city', y='mm', kind='bar');"))) == 1


def test_images_and_plotly(session: Session) -> None:
    (picture,) = pictures(session.run("PIL.Image.new('RGB', (8, 4), 'red')"))
    assert picture.startswith(PNG)
    (shown,) = session.run("px.line(x=[1, 2], y=[3, 4])").outputs
    figure = shown.mime["application/vnd.plotly.v1+json"]
    assert isinstance(figure, dict) and figure["data"][0]["type"] == "scatter"


def test_an_interrupt_in_the_middle_of_arrays_keeps_them(session: Session) -> None:
    session.run("values = np.arange(10.0)")
    with pytest.raises(Exception, match="timed out") as raised:
        session.run("while True: np.sort(np.random.rand(100_000))", timeout=1)
    assert type(raised.value).__name__ == "ExecutionTimeout"
    assert session.run("float(values.sum())").value == "45.0"


def test_a_frame_goes_along_into_a_branch(session: Session) -> None:
    session.run("frame = pd.DataFrame({'n': range(1000)}); plt.close('all')")
    branch = session.fork()
    with branch.sandbox:
        assert branch.run("frame.drop(frame.index[10:], inplace=True); len(frame)").value == "10"
        assert session.run("len(frame)").value == "1000"
        assert len(pictures(branch.run("frame.plot();"))) == 1


def test_arrays_and_frames_of_a_checkpoint(sandbox: Sandbox) -> None:
    with sandbox.session("python") as session:
        made = session.run(
            "import numpy as np, pandas as pd\n"
            "array = np.arange(1_000_000.0); part = array[::2]\n"
            "frame = pd.DataFrame({'n': np.arange(200_000), 'word': ['a', 'b'] * 100_000})"
        )
        assert made.error is None, made.error
        checkpoint = session.checkpoint()
        session.run("array[:] = 0; frame['n'] = 0")
    look = "float(array[7]), float(part[3]), int(frame.n.sum()), frame.word.iloc[-1], array.flags.writeable"
    with checkpoint:
        for _ in range(2):  # the second sees nothing of the first
            branch = checkpoint.session()
            with branch.sandbox:
                assert branch.run(look).value == "(7.0, 6.0, 19999900000, 'b', True)"
                assert branch.run("array += 1; frame.loc[:, 'n'] = 1; float(array[7])").value == "8.0"
