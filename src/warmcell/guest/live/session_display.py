"""Representations of a value: always text, and the rich forms that its `_repr_*_` methods offer to notebooks."""

import base64
import functools
import json
import sys

_LARGEST = 16 * 1024 * 1024
#: Texts up to this length go into the frame of the display itself: sixteen of them fit, however JSON escapes them.
_MOST_TYPES, _SHORT = 16, 4096
#: In the order that notebooks use.
_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("application/pdf", "_repr_pdf_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
)
_PLOTLY = "application/vnd.plotly.v1+json"
#: The data of a figure or table, for clients that cannot show it.
_CHART, _TABLE = "application/vnd.warmcell.chart+json", "application/vnd.warmcell.table+json"
_MOST_VALUES = 100_000
#: Types of the next display that were too large for it.
_left_out = []
#: Types that have no rich form.
_PLAIN = frozenset([int, float, bool, complex, str, bytes, list, tuple, dict, set, frozenset, type, type(len)])
#: A list or a dict as data. Wrapped in an object, because the host accepts only JSON objects.
VALUE = "application/vnd.warmcell.value+json"
#: Longer values are sent as text only.
_LONGEST = 1 << 20


def bundle(value):
    """Texts by MIME type, as sent to the host: binary data in base64, JSON as text."""
    if type(value) in _PLAIN and len(text := repr(value)) <= _LARGEST:
        return {"text/plain": text}
    found = {}
    if not isinstance(value, type):
        found.update(_special(value))
        if not found:
            found.update(_own_bundle(value))
        for mime, name in _METHODS:
            if mime not in found and (content := _call(value, name)) is not None:
                found[mime] = content
    if "text/plain" not in found:
        found["text/plain"] = repr(value)
    return _texts(found)


def raw_bundle(data):
    """For `display({...}, raw=True)`."""
    return _texts({str(mime): content for mime, content in dict(data).items()})


def _texts(found):
    texts = {}
    for mime, content in list(found.items())[:_MOST_TYPES]:
        text = _text(mime, content)
        if len(text) <= _LARGEST:
            texts[mime] = text
        else:
            _complain(f"{mime} of {len(text)} characters was left out: {_LARGEST} is the most")
            _left_out.append(mime)
    return texts


def _text(mime, content):
    if isinstance(content, (bytes, bytearray, memoryview)):
        return base64.b64encode(content).decode()
    if mime == "application/json" or mime.endswith("+json"):
        return _encode_json(content, str)
    return content if isinstance(content, str) else str(content)


def _encode_json(content, default):
    """JSON with null in place of NaN and infinite numbers, which JSON does not have."""
    try:
        return json.dumps(content, default=default, allow_nan=False)
    except ValueError:
        text = json.dumps(content, default=default)
        return json.dumps(json.loads(text, parse_constant=lambda _: None))


def _own_bundle(value):
    made = _call(value, "_repr_mimebundle_", include=None, exclude=None)
    made = made[0] if isinstance(made, tuple) and made else made
    return {str(mime): content for mime, content in made.items()} if isinstance(made, dict) else {}


def _call(value, name, **arguments):
    """The result of a method, or None. Looked up on the type, because `__getattr__` may invent attributes."""
    if not callable(getattr(type(value), name, None)):
        return None
    try:
        made = getattr(value, name)(**arguments)
    except Exception as error:
        if not isinstance(error, NotImplementedError):
            _complain(f"{name} of {type(value).__name__} raised {type(error).__name__}: {error}")
        return None
    if name != "_repr_mimebundle_" and isinstance(made, tuple):
        made = made[0] if made else None  # the rest is metadata
    return made


def _complain(text):
    if getattr(sys, "stderr", None) is not None:  # else `print` would write to stdout
        print(text, file=sys.stderr)


def _special(value):
    """Rich forms of types that offer none outside of a notebook."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    if "matplotlib.figure.Figure" in names:
        return {"image/png": picture(value), **_chart(value)}
    if "plotly.basedatatypes.BaseFigure" in names:
        return {_PLOTLY: json.loads(value.to_json()), "text/plain": f"<{type(value).__name__}>"}
    if names & {"pandas.DataFrame", "pandas.core.frame.DataFrame"}:
        return _table(value)
    return {}


def _chart(figure):
    from . import session_charts

    found = session_charts.describe(figure)
    return {} if found is None else {_CHART: found}


def _table(frame):
    """The table by columns; nothing if column names repeat, which JSON objects cannot have."""
    if frame.size > _MOST_VALUES or not frame.columns.is_unique:
        return {}
    found = json.loads(frame.to_json(orient="split", date_format="iso", default_handler=str))
    rows = found["data"]
    return {_TABLE: {str(name): [row[place] for row in rows] for place, name in enumerate(found["columns"])}}


def picture(figure):
    """A matplotlib figure as PNG."""
    import io

    if figure.canvas is None or not hasattr(figure.canvas, "print_png"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return file.getvalue()


class Screen:
    """`display` and related functions for code in cells."""

    #: Replaced by `install_e2b`.
    bundle = staticmethod(bundle)

    def __init__(self, channel, streams, piece):
        self._channel, self._streams, self._piece = channel, streams, piece
        self._shown = set()
        self._ids = 0

    def begin_cell(self):
        self._shown.clear()

    def show(self, mime, is_result=False, display_id=None, is_update=False):
        """Flushes earlier output first and writes a mark, so that the host can order output and displays.

        A cell's result comes last and needs no mark.
        """
        if not self._channel.is_ours:
            return
        mark = self._mark(is_result)
        short = {}
        for name, text in mime.items():
            if len(text) <= _SHORT:
                short[name] = text
                continue
            for start in range(0, len(text), self._piece):
                self._channel.send(event="piece", mime=name, text=text[start : start + self._piece])
        self._channel.send(
            event="display", mime=short, result=is_result, id=display_id, update=is_update,
            mark=mark, cut=bool(_left_out),
        )  # fmt: skip
        _left_out.clear()

    def _mark(self, is_result):
        if not is_result:
            return self._streams.mark()
        self._streams.flush()
        return 0

    def show_value(self, value, **how):
        self._shown.add(id(value))
        self.show(self.bundle(value), **how)

    def result(self, value):
        """The result for the cell's last frame if it fits and no figures follow; else displays it and returns None."""
        self._shown.add(id(value))
        mime = self.bundle(value)
        is_short = not _left_out and all(len(text) <= _SHORT for text in mime.values())
        if is_short and "matplotlib._pylab_helpers" not in sys.modules:
            return mime
        self.show(mime, is_result=True)
        return None

    def display(self, *values, display_id=None, raw=False, clear=False, include=None, exclude=None, metadata=None, **_):
        """Displays values in all forms that they have. With `display_id`, a display can be replaced later."""
        if clear:
            self.clear_output(wait=True)
        if display_id is True:
            self._ids += 1
            display_id = f"display-{self._ids}"
        for value in values:
            self._show_one(value, raw, display_id, False)
        return Handle(self, display_id) if display_id is not None else None

    def update_display(self, value, *, display_id, raw=False, **_):
        """Replaces the display with this `display_id`."""
        self._show_one(value, raw, display_id, True)

    def _show_one(self, value, raw, display_id, is_update):
        display_id = None if display_id is None else str(display_id)
        own = getattr(type(value), "_ipython_display_", None)
        if callable(own) and not raw and not _special(value):
            value._ipython_display_()
        elif raw:
            self.show(raw_bundle(value), display_id=display_id, is_update=is_update)
        else:
            self.show_value(value, display_id=display_id, is_update=is_update)

    def clear_output(self, wait=False):
        """Discards the output and displays of this cell so far."""
        if self._channel.is_ours:
            self._channel.send(event="clear", mark=self._streams.mark())

    def show_figures(self):
        """Displays the open figures of matplotlib, except those that this cell has displayed, and closes them."""
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        if helpers is None:
            return
        for manager in helpers.Gcf.get_all_fig_managers():
            figure = manager.canvas.figure
            if id(figure) not in self._shown:
                self.show_value(figure)
            helpers.Gcf.destroy(manager)


class Handle:
    """What `display(..., display_id=True)` returns."""

    def __init__(self, screen, display_id):
        self._screen, self.display_id = screen, display_id

    def display(self, value, **how):
        self._screen.display(value, display_id=self.display_id, **how)

    def update(self, value, **how):
        self._screen.update_display(value, display_id=self.display_id, **how)


def install_e2b(screen, adapting):
    """Behaviour of E2B's kernel that notebooks do not have. Only for sandboxes of the E2B API."""
    screen.bundle = _bundle_with_data
    adapting.also("PIL.Image", lambda module: _display_saved_images(screen, module.Image))


def _bundle_with_data(value):
    found = bundle(value)
    if isinstance(value, (list, dict)) and 0 < len(found.get("text/plain", "")) <= _LONGEST:
        try:
            found[VALUE] = _encode_json({"value": value}, _to_json_type)
        except Exception:
            return found  # not JSON, or its representation raised: text only
    return found


def _to_json_type(value):
    """JSON types for numpy arrays and numbers, dates and times."""
    for name in ("tolist", "isoformat"):
        if callable(plain := getattr(type(value), name, None)):
            return plain(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def _display_saved_images(screen, kind):
    """Displays images that are saved to a named file, not those saved to a buffer."""
    save = kind.save

    @functools.wraps(save)
    def save_and_show(image, fp, *args, **kwargs):
        save(image, fp, *args, **kwargs)
        if isinstance(fp, str):
            screen.display(image)

    kind.save = save_and_show
