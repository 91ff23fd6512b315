"""Named tuples that cost little to define: what `typing.NamedTuple` makes, without loading it and all that it brings.

Type checkers see the real thing. The constructor is compiled when the second one is made: a manager defines two dozen
kinds, and a short life of it uses half of them, most once.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter

    _MISSING = object()

    class _Kind(type):
        """Of such classes: annotated names become their fields, and values those fields' defaults."""

        def __new__(mcs, name, bases, body):
            kind = super().__new__(mcs, name, bases, {"__slots__": (), **body})
            if bases != (tuple,):
                kind._was_made = False
                kind._fields = kind.__match_args__ = tuple(kind.__annotations__)
                kind._field_defaults = {name: body[name] for name in kind._fields if name in body}
                for place, field in enumerate(kind._fields):
                    setattr(kind, field, _tuplegetter(place, ""))
            return kind

    class NamedTuple(tuple, metaclass=_Kind):
        """Compares, unpacks and prints as any named tuple does."""

        def __new__(cls, *values, **named):
            if not cls._was_made:
                cls._was_made = True
                rest = [named.pop(name, cls._field_defaults.get(name, _MISSING)) for name in cls._fields[len(values) :]]
                if not named and _MISSING not in rest and len(values) + len(rest) == len(cls._fields):
                    return tuple.__new__(cls, (*values, *rest))
            cls.__new__ = staticmethod(_constructor(cls))
            return cls.__new__(cls, *values, **named)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, **changes):
            return type(self)(**{**self._asdict(), **changes})

        def _asdict(self):
            return dict(zip(self._fields, self))  # noqa: B905  # `strict` came after Python 3.9

        def __repr__(self):
            return (
                f"{type(self).__name__}({', '.join([f'{name}={value!r}' for name, value in self._asdict().items()])})"
            )

        def __getnewargs__(self):
            return tuple(self)

    def _constructor(kind):
        """Written out and compiled, so that wrong arguments are told as for any function, and calls are quick."""
        names = ", ".join(kind._fields)
        made = eval(f"lambda _cls, {names}: _new(_cls, ({names},))", {"_new": tuple.__new__})  # noqa: S307  # our own
        made.__name__, made.__qualname__ = "__new__", f"{kind.__qualname__}.__new__"
        made.__defaults__ = tuple(kind._field_defaults.values())
        return made
