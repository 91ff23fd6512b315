"""The content of a matplotlib figure as data: its kind, titles and axes, and its points, bars, slices or boxes.

For clients that draw charts themselves. The names are those of E2B.
"""

import datetime
import math
import re

_MOST_POINTS = 100_000
#: `Time (s)`, `Mass [kg]`.
_UNIT = re.compile(r"[(\[]([^()\[\]]+)[)\]]\s*$")


def describe(figure):
    """None for a figure without data, or with more points than `_MOST_POINTS`."""
    axes = figure.get_axes()
    if not any(one.has_data() for one in axes):
        return None
    charts = [_chart(one) for one in axes]
    if sum(len(item.get("points", ())) for chart in charts for item in chart["elements"]) > _MOST_POINTS:
        return None
    if len(charts) == 1:
        return charts[0]
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
    return {"type": "superchart", "title": title or None, "elements": charts}


def _chart(axes):
    title = axes.get_title() or None
    kind = _kind(axes)
    try:
        return {"type": kind, "title": title, **_DESCRIBERS[kind](axes)}
    except Exception:  # drawn in an unexpected way: its kind is unknown
        return {"type": "unknown", "title": title, "elements": []}


def _kind(axes):
    names = {type(patch).__name__ for patch in axes.patches}
    lines = [line for line in axes.lines if not _is_guide(line)]
    if axes.images or axes.artists:
        return "unknown"
    if axes.lines and not axes.patches and not axes.collections:
        return "line"
    if names == {"PathPatch"} and axes.lines and not axes.collections:
        return "box_and_whisker"
    if axes.collections and not axes.patches and not lines:
        return "scatter" if all(hasattr(item, "get_sizes") for item in axes.collections) else "unknown"
    if lines or axes.collections:
        return "unknown"
    return {"Wedge": "pie", "Rectangle": "bar"}.get("".join(names), "unknown")


def _is_guide(line):
    """Whether it is a reference line (`axhline`, `axvline`) and not data."""
    x, y = list(line.get_xdata()), list(line.get_ydata())
    return len(x) == len(y) == 2 and (x[0] == x[1] or y[0] == y[1])


# ---- chart kinds ----


def _lines(axes):
    shown = [line for line in axes.lines if not _is_guide(line)] or axes.lines
    elements = [_points(_name(line, "_child", "Line"), zip(line.get_xdata(), line.get_ydata())) for line in shown]
    return {**_labels(axes), **_scales(axes), "elements": elements}


def _scatter(axes):
    elements = [_points(_name(item, "_child", "Group"), item.get_offsets()) for item in axes.collections]
    return {**_labels(axes), **_scales(axes), "elements": elements}


def _points(label, pairs):
    return {"label": label, "points": [[_plain(x), _plain(y)] for x, y in pairs]}


def _bars(axes):
    elements, is_horizontal = [], False
    for container in axes.containers:
        is_horizontal = getattr(container, "orientation", None) == "horizontal"
        names = _Categories(axes.yaxis if is_horizontal else axes.xaxis)
        for bar in container:
            if is_horizontal:
                middle, value = bar.get_y() + bar.get_height() / 2, bar.get_x() + bar.get_width()
            else:
                middle, value = bar.get_x() + bar.get_width() / 2, bar.get_height()
            group = _name(container, "_container", "Group")
            elements.append({"label": names.at(middle), "group": group, "value": _plain(value)})
    return {**_labels(axes, is_turned=is_horizontal), "elements": elements}


def _slices(axes):
    return {
        "elements": [
            {
                "label": wedge.get_label(),
                "angle": float(f"{abs(wedge.theta2 - wedge.theta1):.7g}"),
                "radius": float(wedge.r),
            }
            for wedge in axes.patches
        ]
    }


def _boxes(axes):
    spans = [patch.get_path().vertices for patch in axes.patches]
    is_turned = not any(_is_whisker(line, span) for line in axes.lines for span in spans)
    across, along = (1, 0) if is_turned else (0, 1)
    names = _Categories(axes.yaxis if is_turned else axes.xaxis)
    elements = []
    for span in spans:
        ends = span[:, across].min(), span[:, across].max()
        box = _Box(float(span[:, along].min()), float(span[:, along].max()))
        for line in axes.lines:
            data = line.get_xydata()
            if len(data) and all(ends[0] <= place <= ends[1] for place in data[:, across]):
                box.add(line, data[:, across], data[:, along], ends)
        elements.append(box.describe(names.at(sum(ends) / 2)))
    return {**_labels(axes, is_turned), "elements": elements}


def _is_whisker(line, span):
    """Whether the line is a whisker of an upright box: it starts in the middle of its top or bottom."""
    data = line.get_xydata()
    if len(data) != 2 or data[0][0] != data[1][0]:
        return False
    bottom, top = span[:, 1].min(), span[:, 1].max()
    is_in_the_middle = math.isclose(data[0][0], (span[:, 0].min() + span[:, 0].max()) / 2)
    return is_in_the_middle and (math.isclose(data[:, 1].max(), bottom) or math.isclose(data[:, 1].min(), top))


class _Box:
    """The box spans the first to the third quartile; median, whiskers and outliers are separate lines."""

    def __init__(self, low, high):
        self._low, self._high = low, high
        self._least, self._most, self._median = low, high, (low + high) / 2
        self._outliers = []

    def add(self, line, across, along, ends):
        least, most = float(along.min()), float(along.max())
        if line.get_linestyle() in ("None", ""):
            self._outliers += [float(value) for value in along]
        elif len(along) != 2:
            return  # the outline of the box
        elif across[0] == across[1]:
            self._least, self._most = min(self._least, least), max(self._most, most)
        elif math.isclose(abs(across[1] - across[0]), ends[1] - ends[0]) and self._low <= least <= self._high:
            self._median = least

    def describe(self, label):
        return {
            "label": label,
            "min": self._least,
            "first_quartile": self._low,
            "median": self._median,
            "third_quartile": self._high,
            "max": self._most,
            "outliers": sorted(set(self._outliers)),
        }


_DESCRIBERS = {
    "line": _lines,
    "scatter": _scatter,
    "bar": _bars,
    "pie": _slices,
    "box_and_whisker": _boxes,
    "unknown": lambda axes: {"elements": []},
}


# ---- axes ----


def _labels(axes, is_turned=False):
    """`x` is the axis with the categories, also in horizontal charts."""
    labels = [axes.get_xlabel() or None, axes.get_ylabel() or None]
    x, y = reversed(labels) if is_turned else labels
    return {"x_label": x, "y_label": y, "x_unit": _unit(x), "y_unit": _unit(y)}


def _unit(label):
    found = _UNIT.search(label or "")
    return found[1] if found else None


def _scales(axes):
    found = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        kind = type(converter).__name__
        is_date = "DateConverter" in kind
        found[f"{name}_ticks"] = [_moment(tick) if is_date else _plain(tick) for tick in axis.get_ticklocs()]
        found[f"{name}_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
        usual = "categorical" if "Category" in kind else axis.get_scale()
        found[f"{name}_scale"] = "datetime" if is_date else usual
    return found


def _moment(tick):
    from matplotlib.dates import num2date

    return num2date(tick).isoformat()


class _Categories:
    """Finds the tick label at a position of an axis."""

    def __init__(self, axis):
        self._ticks = [float(tick) for tick in axis.get_ticklocs()]
        self._labels = [label.get_text() for label in axis.get_ticklabels()]
        steps = [after - before for before, after in zip(self._ticks, self._ticks[1:]) if after > before]
        self._reach = min(steps, default=1.0) / 2

    def at(self, place):
        near = min(zip(self._ticks, self._labels), key=lambda pair: abs(pair[0] - place), default=None)
        if near is None or abs(near[0] - place) > self._reach or not near[1]:
            return f"{place:g}"
        return near[1]


def _name(artist, prefix, word):
    label = str(artist.get_label())
    return f"{word} {label[len(prefix) :]}" if label.startswith(prefix) else label


def _plain(value):
    """The value in JSON types; NaN becomes None."""
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    if isinstance(value, str):
        return str(value)
    number = float(value)
    return number if math.isfinite(number) else None
