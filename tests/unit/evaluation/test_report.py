"""The report: one file, nothing loaded, hostile output shown as text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from warmcell import ExecResult, FakeBackend, evaluate
from warmcell.evaluation import report

HOSTILE = "</pre></td><script>fetch('http://x')</script><img src=x onerror=alert(1)>\x1b[2J\u202eabc&lt;"


class Tags(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attributes}


def make_report(tmp_path: Path, name: str, output: str, count: int = 1) -> str:
    tasks = [{"id": name, "cases": [{"expected": "right"}]}]
    out, page = tmp_path / "verdicts.jsonl", tmp_path / "report.html"
    backend = FakeBackend(lambda request: ExecResult(output, stderr=output, exit_code=1))
    summary = evaluate(tasks, [{"id": name, "code": "x"}] * count, out=out, backend=backend)
    report.write_report(str(page), summary, summary.pass_at, out, name)
    return page.read_text()


def test_what_a_program_printed_stays_text(tmp_path: Path) -> None:
    page = make_report(tmp_path, HOSTILE, HOSTILE)
    tags = Tags(page)
    assert not tags.names & {"script", "img", "link", "iframe", "object", "base"}
    assert not {name for name in tags.attributes if name.startswith("on") or name in ("src", "href", "srcset")}
    assert "\x1b" not in page and "\u202e" not in page and "&lt;script&gt;" in page
    assert "default-src 'none'" in page


def test_scores_verdicts_and_what_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_ROWS", 2)
    page = make_report(tmp_path, "t", "oops", 5)
    assert "pass@1" in page and "0.00%" in page and "runtime_error" in page
    assert page.count("oops</pre>") == 2 and "3 more" in page
