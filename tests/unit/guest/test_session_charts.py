"""What a figure shows, as data. With stand-ins for matplotlib's objects; with real ones: scripts/test-e2b."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import warmcell.guest

_FILE = Path(warmcell.guest.__file__).parent / "live/session_charts.py"
_SPEC = importlib.util.spec_from_file_location("session_charts", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
charts: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(charts)


class Rectangle(SimpleNamespace):
    def get_x(self) -> float:
        return float(self.x)

    def get_width(self) -> float:
        return float(self.width)

    def get_height(self) -> float:
        return float(self.height)


class Bars(list[Rectangle]):
    orientation = "vertical"

    def get_label(self) -> str:
        return "_container0"


class Wedge(SimpleNamespace):
    def get_label(self) -> str:
        return str(self.label)


def axis(places: list[float], labels: list[str], scale: str = "linear", converter: object = None) -> SimpleNamespace:
    texts = [SimpleNamespace(get_text=lambda label=label: label) for label in labels]
    return SimpleNamespace(
        get_ticklocs=lambda: places, get_ticklabels=lambda: texts, get_scale=lambda: scale, converter=converter
    )


def axes(title: str = "", x: str = "", y: str = "", **more: Any) -> SimpleNamespace:
    drawn: dict[str, Any] = {
        name: [] for name in ("lines", "patches", "collections", "images", "artists", "containers")
    }
    drawn |= {"xaxis": axis([0.0, 1.0], ["a", "b"]), "yaxis": axis([0.0], ["0"], "log")} | more
    said = {"get_title": lambda: title, "get_xlabel": lambda: x, "get_ylabel": lambda: y, "has_data": lambda: True}
    return SimpleNamespace(**drawn, **said)


def line(label: str, x: list[Any], y: list[Any]) -> SimpleNamespace:
    return SimpleNamespace(get_label=lambda: label, get_xdata=lambda: x, get_ydata=lambda: y)


def figure(*each: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(get_axes=lambda: list(each), get_suptitle=lambda: "all")


def test_lines_with_their_axes_and_without_rules() -> None:
    drawn = [line("sin", [0, 1], [2, math.nan]), line("_child1", [0, 5], [7, 8]), line("rule", [0, 1], [3, 3])]
    chart = charts.describe(figure(axes("T", "Time (s)", "plain", lines=drawn)))
    assert (chart["type"], chart["title"]) == ("line", "T")
    assert [chart[name] for name in ("x_label", "x_unit", "y_label", "y_unit")] == ["Time (s)", "s", "plain", None]
    assert [chart[name] for name in ("x_scale", "y_scale", "x_tick_labels")] == ["linear", "log", ["a", "b"]]
    assert [(item["label"], item["points"]) for item in chart["elements"]] == [
        ("sin", [[0.0, 2.0], [1.0, None]]),
        ("Line 1", [[0.0, 7.0], [5.0, 8.0]]),
    ]


def test_bars_stand_at_their_labels() -> None:
    bars = Bars([Rectangle(x=-0.4, width=0.8, height=3), Rectangle(x=0.6, width=0.8, height=5)])
    chart = charts.describe(figure(axes(patches=list(bars), containers=[bars])))
    assert chart["type"] == "bar"
    assert [(item["label"], item["group"], item["value"]) for item in chart["elements"]] == [
        ("a", "Group 0", 3.0),
        ("b", "Group 0", 5.0),
    ]


def test_slices_and_what_nobody_knows() -> None:
    pie = axes(patches=[Wedge(label="No", theta1=90, theta2=414.00000858, r=1)])
    both = charts.describe(figure(pie, axes(images=[object()])))
    assert (both["type"], both["title"]) == ("superchart", "all")
    assert both["elements"][0]["elements"] == [{"label": "No", "angle": 324.0, "radius": 1.0}]
    assert both["elements"][1] == {"type": "unknown", "title": None, "elements": []}


@pytest.mark.parametrize("x", [["one"], [object()]])
def test_strange_values_never_raise(x: list[Any]) -> None:
    assert charts.describe(figure(axes(lines=[line("l", x, [1])])))["type"] in ("line", "unknown")


def test_an_empty_figure_and_a_huge_one_have_none() -> None:
    empty = axes()
    empty.has_data = lambda: False
    assert charts.describe(figure(empty)) is None and charts.describe(figure()) is None
    many = list(range(100_001))
    assert charts.describe(figure(axes(lines=[line("l", many, many)]))) is None
