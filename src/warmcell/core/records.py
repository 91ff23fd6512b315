"""Data classes without the import of `dataclasses`, which is slow.

Type checkers see the real ones, and `dataclasses.fields`, `replace` and `asdict` work on records. Only what this
project uses is here: always slots and comparison, no order, no inheritance.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:
    from operator import attrgetter

    _NEEDED = object()
    _FEW = 40

    def _no_values(record):
        return ()

    class field:  # noqa: N801  # a function in `dataclasses`
        """Options of one field, beyond `name: type = default`."""

        __slots__ = ("default", "factory", "is_keyword", "is_shown")

        def __init__(self, *, default=_NEEDED, default_factory=None, kw_only=False, repr=True):
            self.default, self.factory, self.is_keyword, self.is_shown = default, default_factory, kw_only, repr

    def dataclass(*, frozen=False, slots):
        """Makes a class of annotated names into a record. `slots=True` must be given, for type checkers."""
        assert slots
        return lambda kind: _make_record(kind, _FROZEN if frozen else _OPEN)

    def replace(record, **changes):
        """A copy with other values in some fields, checked like any new record."""
        return type(record)(**{name: getattr(record, name) for name in record.__record_fields__} | changes)

    def _make_record(kind, methods):
        body = dict(kind.__dict__)
        fields = {name: _as_field(body.pop(name, _NEEDED)) for name in kind.__annotations__}
        for name in ("__dict__", "__weakref__"):
            body.pop(name, None)
        positional = tuple(name for name, item in fields.items() if not item.is_keyword)
        body |= {
            **{name: method for name, method in methods.items() if name not in body},
            "__slots__": tuple(fields),
            "__qualname__": kind.__qualname__,
            "__init__": _early_use,
            "__record_uses__": 0,
            "__match_args__": positional,
            "__record_fields__": fields,
            "__record_values__": attrgetter(*fields) if fields else _no_values,
            "__dataclass_fields__": _Standard("__dataclass_fields__"),
            "__dataclass_params__": _Standard("__dataclass_params__"),
            "__signature__": _Signature(),
        }
        return type(kind)(kind.__name__, kind.__bases__, body)

    def _as_field(default):
        return default if isinstance(default, field) else field(default=default)

    def _early_use(self, *args, **kwargs):
        """Fills in the first few instances field by field: a short-lived program creates no more, and compiling takes
        longer.
        """
        kind = type(self)
        if kind.__dict__.get("__init__") is not _early_use:
            kind = next(kind for kind in kind.__mro__ if kind.__dict__.get("__init__") is _early_use)
        values = _bind(kind, args, kwargs) if kind.__record_uses__ < _FEW else None
        kind.__record_uses__ += 1
        if values is None:
            kind.__init__ = _initialiser(kind)
            kind.__init__(self, *args, **kwargs)
            return
        _restore(self, values)
        if hasattr(kind, "__post_init__"):
            self.__post_init__()

    def _bind(kind, args, kwargs):
        """The values in the order of the fields, or None if the arguments are wrong."""
        given = dict(zip(kind.__match_args__, args))  # noqa: B905  # too many arguments are reported later
        if len(args) > len(given) or given.keys() & kwargs.keys() or not kwargs.keys() <= kind.__record_fields__.keys():
            return None
        given.update(kwargs)
        for name, item in kind.__record_fields__.items():
            if name not in given:
                given[name] = item.factory() if item.factory is not None else item.default
        values = []
        for name in kind.__record_fields__:
            if given[name] is _NEEDED:
                return None
            values.append(given[name])
        return values

    def _initialiser(kind):
        """A compiled `__init__`: wrong arguments raise as for any function, and calls are quick."""
        scope = {"_needed": _NEEDED}
        parameters, lines = [], []
        for name, item in sorted(kind.__record_fields__.items(), key=lambda pair: pair[1].is_keyword):
            if item.is_keyword and "*" not in parameters:
                parameters.append("*")
            value = name
            if item.factory is not None:
                scope[f"_make_{name}"] = item.factory
                parameters.append(f"{name}=_needed")
                value = f"_make_{name}() if {name} is _needed else {name}"
            elif item.default is not _NEEDED:
                scope[f"_default_{name}"] = item.default
                parameters.append(f"{name}=_default_{name}")
            else:
                parameters.append(name)
            scope[f"_set_{name}"] = kind.__dict__[name].__set__  # bypasses `__setattr__`, without a look-up
            lines.append(f" _set_{name}(self, {value})\n")
        if hasattr(kind, "__post_init__"):
            lines.append(" self.__post_init__()\n")
        exec(f"def __init__(self, {', '.join(parameters)}):\n{''.join(lines)}", scope)  # noqa: S102  # our own names
        made = scope["__init__"]
        made.__qualname__ = f"{kind.__qualname__}.__init__"
        return made

    class _Standard:
        """What the standard module looks for, created when it first looks."""

        def __init__(self, name):
            self._name = name

        def __get__(self, instance, owner):
            import dataclasses

            record = next(kind for kind in owner.__mro__ if "__record_fields__" in kind.__dict__)
            body = {"__annotations__": record.__annotations__, "__module__": record.__module__}
            for name, item in record.__record_fields__.items():
                how = {"kw_only": item.is_keyword, "repr": item.is_shown}
                if item.factory is not None:
                    how["default_factory"] = item.factory
                elif item.default is not _NEEDED:
                    how["default"] = item.default
                body[name] = dataclasses.field(**how)
            is_frozen = record.__setattr__ is _refuse_change
            twin = dataclasses.dataclass(frozen=is_frozen)(type(record.__name__, (), body))
            for name in ("__dataclass_fields__", "__dataclass_params__"):
                setattr(record, name, getattr(twin, name))
            return getattr(twin, self._name)

    class _Signature:
        """The signature, for `inspect`."""

        def __get__(self, instance, owner):
            from inspect import Parameter, Signature

            if "__record_fields__" not in owner.__dict__:
                raise AttributeError("a subclass of a record has a signature of its own")
            parameters = []
            for name, item in owner.__record_fields__.items():
                default = Parameter.empty if item.default is _NEEDED else item.default
                kind = Parameter.KEYWORD_ONLY if item.is_keyword else Parameter.POSITIONAL_OR_KEYWORD
                shown = default if item.factory is None else item.factory
                parameters.append(Parameter(name, kind, default=shown, annotation=owner.__annotations__[name]))
            return Signature(parameters)

    def _values(record):
        values = record.__record_values__(record)
        return values if len(record.__record_fields__) > 1 else (values,)

    def _equal(self, other):
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _repr(self):
        shown = [name for name, item in self.__record_fields__.items() if item.is_shown]
        return f"{type(self).__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in shown])})"

    def _restore(self, values):
        for name, value in zip(self.__record_fields__, values, strict=True):
            object.__setattr__(self, name, value)

    def _refuse_change(self, name, *_):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot change field {name!r}")

    _OPEN = {
        "__eq__": _equal,
        "__hash__": None,
        "__repr__": _repr,
        "__getstate__": _values,
        "__setstate__": _restore,
        "__replace__": replace,
    }
    _FROZEN = _OPEN | {
        "__hash__": lambda self: hash(_values(self)),
        "__setattr__": _refuse_change,
        "__delattr__": _refuse_change,
    }
