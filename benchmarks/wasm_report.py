"""The figures of benchmarks/wasm.py: as a table and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from live_sandboxes_report import host


@dataclass(frozen=True)
class Target:
    """The maximum p50: in milliseconds, as a multiple of bare, or in milliseconds above bare."""

    most: float
    of: str = "ms"

    def in_target_unit(self, p50: float, bare: float | None) -> float | None:
        if self.of == "ms":
            return p50
        if bare is None:
            return None
        return p50 / bare if self.of == "x bare" else p50 - bare


@dataclass(frozen=True)
class Row:
    """Milliseconds of one command, ours and the host's."""

    part: str
    name: str
    p50: float
    p95: float
    bare_p50: float | None
    target: Target | None = None

    @property
    def is_missed(self) -> bool:
        in_target_unit = self.target.in_target_unit(self.p50, self.bare_p50) if self.target else None
        return self.target is not None and in_target_unit is not None and in_target_unit > self.target.most


def row(part: str, name: str, ours: list[float], bare: list[float], target: Target | None = None) -> Row:
    late = sorted(ours)[min(len(ours) - 1, int(len(ours) * 0.95))]
    return Row(part, name, statistics.median(ours), late, statistics.median(bare) if bare else None, target)


def lines(rows: list[Row]) -> Iterator[str]:
    yield "| milliseconds | | p50 | p95 | bare p50 | at most |"
    yield "|---|---|---:|---:|---:|---:|"
    for part, group in groupby(rows, lambda each: each.part):
        for number, each in enumerate(group):
            bare = "" if each.bare_p50 is None else f"{each.bare_p50:.2f}"
            most = "" if each.target is None else f"{each.target.most:g} {each.target.of}"
            figures = f"{each.p50:.2f} | {each.p95:.2f} | {bare} | {most}{' MISS' if each.is_missed else ''}"
            name = each.name.replace("|", "\\|")
            yield f"| {'' if number else part} | `{name}` | {figures} |"
    yield ""
    yield ", ".join(f"{name} {value}" for name, value in host().items())


def write(rows: list[Row], left_out: list[str], results: Path) -> int:
    """Print and write the report; return 1 if a target was missed."""
    table = "\n".join([*lines(rows), *(f"\nleft out: {line}" for line in left_out)])
    print(table)
    results.mkdir(exist_ok=True)
    (results / "wasm.md").write_text(table + "\n")
    content = {"host": host(), "rows": [asdict(each) for each in rows], "left out": left_out}
    (results / "wasm.json").write_text(json.dumps(content, indent=1) + "\n")
    return int(any(each.is_missed for each in rows))
