"""A report of an evaluation as one HTML file: no script, nothing loaded from elsewhere, all text escaped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from html import escape
from typing import TextIO

from warmcell.evaluation.summary import Summary
from warmcell.evaluation.verdict_log import Row, read_verdicts

MOST_ROWS = 500
_STYLE = """
:root { color-scheme: light dark; --accent: #2a7d4f; --rest: #b4552d; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8885; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { height: .8rem; background: var(--rest); } .bar.accepted { background: var(--accent); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; font-size: 12px; }
dl { display: flex; gap: 2rem; flex-wrap: wrap; } dt { opacity: .7; } dd { margin: 0; font-size: 1.6rem; }
"""
# The policy makes sure of it, even if a text were not escaped.
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>{style}</style></head><body>
<h1>{title}</h1>
"""


def write_report(
    path: str, summary: Summary, scores: Mapping[int, float], verdicts: str | os.PathLike[str], title: str
) -> None:
    """Writes the report. Verdicts are read one at a time; the first failures are shown with their output."""
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(_HEAD.format(title=_text(f"Evaluation of {os.path.basename(title)}"), style=_STYLE))
        _write_figures(file, summary, scores)
        _write_counts(file, summary)
        _write_tasks(file, summary)
        _write_failures(file, read_verdicts(os.fspath(verdicts)))
        file.write("</body></html>\n")


def _write_figures(file: TextIO, summary: Summary, scores: Mapping[int, float]) -> None:
    figures = {f"pass@{k}": f"{score:.2%}" for k, score in scores.items()}
    figures |= {"tasks": str(summary.tasks), "samples": str(summary.samples), "not judged": str(summary.not_judged)}
    items = (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items())
    file.write(f"<dl>{''.join(items)}</dl>\n")


def _write_counts(file: TextIO, summary: Summary) -> None:
    total = max(1, sum(summary.counts.values()))
    file.write("<h2>Verdicts</h2><table><tr><th>verdict</th><th>samples</th><th>share</th><th></th></tr>\n")
    for status, count in summary.counts.items():
        kind = "bar accepted" if status == "accepted" else "bar"
        bar = f'<div class="{kind}" style="width:{100 * count / total:.1f}%"></div>'
        cells = f'<td class="number">{count}</td><td class="number">{count / total:.1%}</td><td width="50%">{bar}</td>'
        file.write(f"<tr><td>{_text(status)}</td>{cells}</tr>\n")
    file.write("</table>\n")


def _write_tasks(file: TextIO, summary: Summary) -> None:
    groups = {"every sample accepted": 0, "some accepted": 0, "none accepted": 0}
    for (samples, accepted), tasks in summary.tally.items():
        groups[list(groups)[0 if accepted == samples else 1 if accepted else 2]] += tasks
    rows = (f'<tr><td>{name}</td><td class="number">{tasks}</td></tr>' for name, tasks in groups.items())
    file.write(f"<h2>Tasks</h2><table>{''.join(rows)}</table>\n")


def _write_failures(file: TextIO, rows: Iterable[Row]) -> None:
    file.write("<h2>Samples that were not accepted</h2><table>\n")
    file.write("<tr><th>task</th><th>sample</th><th>verdict</th><th>cases</th><th>output</th></tr>\n")
    shown = others = 0
    for row in rows:
        if row["status"] == "accepted":
            continue
        if shown < MOST_ROWS:
            shown += 1
            file.write(_failure(row))
        else:
            others += 1
    file.write("</table>\n")
    if others:
        file.write(f"<p>{others} more are in the file of verdicts.</p>\n")


def _failure(row: Row) -> str:
    output = str(row.get("error") or "") + "\n" + str(row.get("output") or "")
    passed = f"{row.get('passed', '')} of {row.get('cases', '')}"
    cells = [row["task_id"], row["sample"], row["status"], passed]
    return (
        "<tr>"
        + "".join(f"<td>{_text(cell)}</td>" for cell in cells)
        + f"<td><details><summary>show</summary><pre>{_text(output.strip())}</pre></details></td></tr>\n"
    )


def _text(value: object) -> str:
    """Escaped; control characters and those that reverse the text are written as escapes, so that they are seen."""
    safe = (mark if mark.isprintable() or mark in "\n\t" else repr(mark)[1:-1] for mark in str(value))
    return escape("".join(safe))
