"""Decorators that derive one form of a method from another, with all type hints.

`exec = blocking(AsyncSandbox.exec)` has the arguments, defaults and docstring of the asynchronous method.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from warmcell.backends.output_callbacks import call_with_output
from warmcell.lifetime.portal import portal

P = ParamSpec("P")
T = TypeVar("T")
_CALLBACKS = frozenset({"on_stdout", "on_stderr"})


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The blocking form of an asynchronous method, which it calls on `self._async` through the portal.

    The calling thread calls `on_stdout` and `on_stderr`.
    """

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        function: Callable[P, Coroutine[Any, Any, T]] = getattr(self._async, method.__name__)
        if not _CALLBACKS & kwargs.keys():
            return portal.call(function, *args, **kwargs)
        callbacks: dict[str, Any] = {name: kwargs[name] for name in _CALLBACKS & kwargs.keys()}
        others = {name: value for name, value in kwargs.items() if name not in callbacks}
        return call_with_output(function, callbacks, *args, **others)

    return call


def same_arguments(
    method: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """For a method with a body and a return type of its own: the arguments and, without its own, the docstring."""

    def decorate(function: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        name, doc = function.__name__, function.__doc__ or method.__doc__
        functools.update_wrapper(function, method)
        function.__name__, function.__doc__ = name, doc
        return function

    return decorate


def arguments_of(make: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """For `__init__`: the arguments with which `make` is called."""

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.signature(make)
        init.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[own, *signature.parameters.values()], return_annotation=None
        )
        return init

    return decorate
