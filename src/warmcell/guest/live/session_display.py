"""What a value looks like: a text always, and whatever richer forms it offers by the names that notebooks use."""

import base64
import json
import sys

_LARGEST = 16 * 1024 * 1024
#: What goes with the frame of a display itself; sixteen such texts fit into it however they are spelt.
_MOST_TYPES, _SHORT = 16, 4096
#: In the order in which notebooks ask.
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
#: What a figure or a table holds, for whoever cannot look at it.
_CHART, _TABLE = "application/vnd.warmcell.chart+json", "application/vnd.warmcell.table+json"
_MOST_VALUES = 100_000


#: What has no other form than its text.
_PLAIN = frozenset([int, float, bool, complex, str, bytes, list, tuple, dict, set, frozenset, type, type(len)])


def bundle(value):
    """MIME types to texts, as they go over the wire: binary in base64, JSON as its text."""
    if type(value) in _PLAIN and len(text := repr(value)) <= _LARGEST:
        return {"text/plain": text}
    found = {}
    if not isinstance(value, type):
        found.update(_special(value))
        if not found:
            found.update(_own_bundle(value))
        for mime, name in _METHODS:
            if mime not in found and (content := _called(value, name)) is not None:
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
    return texts


def _text(mime, content):
    if isinstance(content, (bytes, bytearray, memoryview)):
        return base64.b64encode(content).decode()
    if mime == "application/json" or mime.endswith("+json"):
        return json.dumps(content, default=str)
    return content if isinstance(content, str) else str(content)


def _own_bundle(value):
    made = _called(value, "_repr_mimebundle_", include=None, exclude=None)
    made = made[0] if isinstance(made, tuple) and made else made
    return {str(mime): content for mime, content in made.items()} if isinstance(made, dict) else {}


def _called(value, name, **arguments):
    """What a method gives, or None. Looked for on the type: an object that invents attributes has no such method."""
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
    print(text, file=sys.stderr)


def _special(value):
    """What offers nothing by itself outside of a notebook's own program."""
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

    found = session_charts.described(figure)
    return {} if found is None else {_CHART: found}


def _table(frame):
    """By column. Nothing where names come twice, which JSON cannot have."""
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
    """`display` and its kin for the code in the cells."""

    #: What a value looks like here.
    bundle = staticmethod(bundle)

    def __init__(self, channel, streams, piece):
        self._channel, self._streams, self._piece = channel, streams, piece
        self._shown = set()
        self._ids = 0

    def begin_cell(self):
        self._shown.clear()

    def show(self, mime, is_result=False, display_id=None, is_update=False):
        """What was printed before is in the pipes when the host hears of this, and a mark says where it ends.

        After a cell's result comes nothing, and it needs none.
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
            mark=mark,
        )  # fmt: skip

    def _mark(self, is_result):
        if not is_result:
            return self._streams.mark()
        self._streams.flush()
        return 0

    def show_value(self, value, **how):
        self._shown.add(id(value))
        self.show(self.bundle(value), **how)

    def result(self, value):
        """For the cell's last frame, where it fits into it and nothing else is to come after it; else it is shown."""
        self._shown.add(id(value))
        mime = self.bundle(value)
        if "matplotlib._pylab_helpers" not in sys.modules and all(len(text) <= _SHORT for text in mime.values()):
            return mime
        self.show(mime, is_result=True)
        return None

    def display(self, *values, display_id=None, raw=False, clear=False, include=None, exclude=None, metadata=None, **_):
        """Shows values in the richest forms they have. With `display_id`, what is shown can be replaced later."""
        if clear:
            self.clear_output(wait=True)
        if display_id is True:
            self._ids += 1
            display_id = f"display-{self._ids}"
        for value in values:
            self._show_one(value, raw, display_id, False)
        return Handle(self, display_id) if display_id is not None else None

    def update_display(self, value, *, display_id, raw=False, **_):
        """Replaces what was shown under `display_id`."""
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
        """Forgets what this cell has printed and shown so far."""
        if self._channel.is_ours:
            self._channel.send(event="clear", mark=self._streams.mark())

    def show_figures(self):
        """Figures that matplotlib still holds open: shown, unless this cell has shown them, and closed."""
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
