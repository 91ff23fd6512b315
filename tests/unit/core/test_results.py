"""Results in terminals and notebooks: short, and nothing that a guest wrote is more than text."""

from __future__ import annotations

from warmcell import ExecResult
from warmcell.core.types import Denial


def test_one_short_line() -> None:
    assert repr(ExecResult(stdout="42\n", duration=0.0123)) == r"ExecResult(exit_code=0, stdout='42\n', 12.3 ms)"
    long = repr(ExecResult(stdout="x\x1b[2J" * 100_000, stderr="e", exit_code=137, signal=9))
    assert len(long) < 400 and "\x1b" not in long and "\n" not in long
    assert "signal=9" in long and "(500000 characters)" in long


def test_a_guest_writes_no_markup_into_a_notebook() -> None:
    hostile = "<script>alert(1)</script>"
    denial = Denial("filesystem", hostile, hostile, hostile)
    html = ExecResult(stdout=hostile, stderr=hostile, exit_code=1, denials=[denial])._repr_html_()
    assert "<script" not in html and html.count("&lt;script&gt;") == 5 and "exit 1" in html


def test_much_output_is_cut_in_a_notebook() -> None:
    html = ExecResult(stdout="x" * 1_000_000)._repr_html_()
    assert len(html) < 30_000 and "1000000 characters in all" in html
