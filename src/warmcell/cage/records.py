"""Named tuples that are cheap to define, like `typing.NamedTuple` but without loading `typing`.

Type checkers see the real class. A constructor is compiled only to report wrong arguments: a manager defines two dozen
classes, and instantiates most of them only a few times.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter

    _MISSING = object()
    _new = tuple.__new__

    class _Kind(type):
        """Annotated names become fields, and their values defaults."""

        def __new__(mcs, name, bases, body):
            kind = super().__new__(mcs, name, bases, {"__slots__": (), **body})
            if bases != (tuple,):
                kind._fields = kind.__match_args__ = tuple(kind.__annotations__)
                kind._field_defaults = {name: body[name] for name in kind._fields if name in body}
                for place, field in enumerate(kind._fields):
                    setattr(kind, field, _tuplegetter(place, ""))
            return kind

    class NamedTuple(tuple, metaclass=_Kind):
        """Compares, unpacks and prints like any named tuple."""

        def __new__(cls, *values, **named):
            if named or len(values) != len(cls._fields):
                values = _complete(cls, values, named)
            return _new(cls, values)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, **changes):
            values = tuple(map(changes.pop, self._fields, self))
            # The constructor refuses a name that is left: it is not a field.
            return type(self)(*values, **changes)

        def _asdict(self):
            return dict(zip(self._fields, self))  # noqa: B905  # `strict` came after Python 3.9

        def __repr__(self):
            return (
                f"{type(self).__name__}({', '.join([f'{name}={value!r}' for name, value in self._asdict().items()])})"
            )

        def __getnewargs__(self):
            return tuple(self)

    def _complete(kind, values, named):
        rest = [named.get(name, kind._field_defaults.get(name, _MISSING)) for name in kind._fields[len(values) :]]
        complete = (*values, *rest)
        if len(complete) != len(kind._fields) or _MISSING in rest or not named.keys() <= {*kind._fields[len(values) :]}:
            _refuse(kind, values, named)
        return complete

    def _refuse(kind, values, named):
        """Raise Python's own error for wrong arguments, by compiling a function and calling it."""
        names = ", ".join(kind._fields)
        written = eval(f"lambda _cls, {names}: None")  # noqa: S307  # our own
        written.__name__, written.__qualname__ = "__new__", f"{kind.__qualname__}.__new__"
        written.__defaults__ = tuple(kind._field_defaults.values())
        written(kind, *values, **named)
