"""Modules that code written for notebooks imports, where the real ones are not installed or would need a notebook."""

import os
import sys
from _frozen_importlib import ModuleSpec  # as importlib.machinery has it
from _frozen_importlib_external import PathFinder

_FIGURES = "warmcell_figures"
_DISPLAY = ("display", "update_display", "clear_output")


def install(screen):
    """Adds the finders; ours is last, so installed modules take precedence. Returns the adapting finder."""
    os.environ.setdefault("MPLBACKEND", f"module://{_FIGURES}")
    sys.meta_path.append(_Finder(screen))
    sys.meta_path.insert(0, adapting := _AdaptingFinder(screen))
    return adapting


class _Finder:
    def __init__(self, screen):
        self._makers = {
            _FIGURES: lambda module: _fill_figures(module, screen),
            "IPython": lambda module: _fill_package(module, screen),
            "IPython.display": lambda module: _fill_display(module, screen),
        }

    def find_spec(self, name, path=None, target=None):
        maker = self._makers.get(name)
        if maker is None:
            return None
        return ModuleSpec(name, _Loader(maker), is_package=name == "IPython")


class _AdaptingFinder:
    """Makes libraries that would open a browser, a viewer or a notebook display their output like any value."""

    def __init__(self, screen):
        self._adapters = {
            "plotly.basedatatypes": lambda module: _show_by(screen, module, "BaseFigure"),
            "PIL.Image": lambda module: _show_by(screen, module, "Image"),
            "IPython.core.display_functions": lambda module: _display_by(screen, module),
        }

    def also(self, name, adapt):
        before = self._adapters[name]
        self._adapters[name] = lambda module: (before(module), adapt(module))

    def find_spec(self, name, path=None, target=None):
        if name not in self._adapters:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._adapt(spec.loader.exec_module, self._adapters[name])
        return spec

    def _adapt(self, execute, adapt):
        def exec_module(module):
            execute(module)
            adapt(module)

        return exec_module


def _show_by(screen, module, name):
    if hasattr(module, name):  # other versions have it elsewhere
        getattr(module, name).show = lambda value, *args, **kwargs: screen.display(value) and None


def _display_by(screen, module):
    for name in _DISPLAY:
        setattr(module, name, getattr(screen, name))


class _Loader:
    def __init__(self, maker):
        self._maker = maker

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self._maker(module)


def _fill_figures(module, screen):
    """A backend of matplotlib: Agg, whose `show` sends the figures to the host."""
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvas

    module.FigureCanvas, module.FigureManager = FigureCanvas, FigureManagerBase
    module.show = lambda *args, **kwargs: screen.show_figures()


def _fill_package(module, screen):
    module.get_ipython = lambda: None
    module.__version__, module.version_info = "9.0.0", (9, 0, 0)  # matplotlib checks the version


def _fill_display(module, screen):
    _display_by(screen, module)
    for kind in (HTML, Markdown, SVG, Latex, Javascript, JSON, Pretty, Image):
        setattr(module, kind.__name__, kind)
    module.Math = Latex


class _Shown:
    """A displayable object, given as data or as a file name."""

    mime = "text/plain"
    mode = "r"

    def __init__(self, data=None, url=None, filename=None, **_):
        if url is not None:
            raise NotImplementedError("give data or filename: nothing is fetched for a display")
        if filename is not None:
            with open(filename, self.mode) as file:
                data = file.read()
        self.data = data

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.mime: self.data, "text/plain": f"<{type(self).__name__}>"}


class HTML(_Shown):
    mime = "text/html"

    def _repr_html_(self):
        return self.data


Markdown = type("Markdown", (_Shown,), {"mime": "text/markdown"})
SVG = type("SVG", (_Shown,), {"mime": "image/svg+xml"})
Latex = type("Latex", (_Shown,), {"mime": "text/latex"})
Javascript = type("Javascript", (_Shown,), {"mime": "application/javascript"})
JSON = type("JSON", (_Shown,), {"mime": "application/json"})


class Pretty(_Shown):
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": self.data}


class Image(_Shown):
    mode = "rb"

    def __init__(self, data=None, url=None, filename=None, format=None, **_):
        if isinstance(data, str):
            data, filename = None, data
        super().__init__(data, url, filename)
        is_jpeg = format in ("jpg", "jpeg") or bytes(self.data or b"").startswith(b"\xff\xd8")
        self.mime = "image/jpeg" if is_jpeg else "image/png"
