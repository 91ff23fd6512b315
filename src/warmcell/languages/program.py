"""The former name of `program_spec`, for runtimes of other packages."""

from __future__ import annotations

from warmcell.languages import program_spec


def __getattr__(name: str) -> object:
    if name not in ("Program", "Build"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings

    new = "ProgramSpec" if name == "Program" else name
    warnings.warn(f"use warmcell.languages.program_spec.{new}", DeprecationWarning, stacklevel=2)
    return getattr(program_spec, new)
