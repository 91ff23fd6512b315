"""The figures of benchmarks/live_sandboxes.py: as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple


class Figure(NamedTuple):
    part: str
    name: str
    value: float
    unit: str
    #: To what it is compared with in the same part, and the most that it may be.
    ratio: float | None = None
    at_most: float | None = None

    @property
    def is_missed(self) -> bool:
        return self.at_most is not None and self.ratio is not None and self.ratio > self.at_most


def host() -> dict[str, str]:
    who = "root" if os.geteuid() == 0 else "ordinary user"
    return {
        "user": who,
        "processors": str(os.cpu_count()),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
    }


def lines(figures: list[Figure], about: dict[str, str]) -> Iterator[str]:
    yield "| | | | ratio | at most |"
    yield "|---|---|---:|---:|---:|"
    for part, group in groupby(figures, lambda figure: figure.part):
        for number, figure in enumerate(group):
            ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
            most = "" if figure.at_most is None else f"{figure.at_most:g}{' MISS' if figure.is_missed else ''}"
            value = f"{figure.value:.3g}" if figure.value < 100 else f"{figure.value:.0f}"
            yield f"| {'' if number else part} | {figure.name} | {value} {figure.unit} | {ratio} | {most} |"
    yield ""
    yield ", ".join(f"{name} {value}" for name, value in about.items())


def write(figures: list[Figure], about: dict[str, str], results: Path | None) -> int:
    """Print the report and write it to `results`, if given; return 1 if a goal was missed."""
    table = "\n".join(lines(figures, about))
    print(table)
    if results is not None:
        results.mkdir(exist_ok=True)
        (results / "living.md").write_text(table + "\n")
        content = {"host": about, "figures": [figure._asdict() for figure in figures]}
        (results / "living.json").write_text(json.dumps(content, indent=1) + "\n")
    return int(any(figure.is_missed for figure in figures))
