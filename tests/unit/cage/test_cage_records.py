"""The cage's named tuples behave as the standard ones do, which type checkers take them for."""

from __future__ import annotations

import pickle
import typing

import pytest

from warmcell.cage import records


class Ours(records.NamedTuple):
    """A point."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = ()

    def sum(self) -> int:
        return self.x + self.y


class Standard(typing.NamedTuple):
    """A point."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = ()


def test_they_are_tuples_with_names() -> None:
    ours, standard = Ours(1, tags=("a",)), Standard(1, tags=("a",))
    assert ours == standard == (1, 2, ("a",))
    assert hash(ours) == hash(standard)
    assert (ours.x, ours.y, ours.tags, ours.sum()) == (1, 2, ("a",), 3)
    assert repr(ours) == repr(standard).replace("Standard", "Ours")
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert not hasattr(ours, "__dict__")


def test_they_describe_and_copy_themselves() -> None:
    assert Ours._fields == Standard._fields
    assert Ours._field_defaults == Standard._field_defaults
    assert Ours.__doc__ == "A point."
    assert Ours(1)._asdict() == Standard(1)._asdict()
    assert Ours(1)._replace(y=5) == Ours(1, 5)
    assert type(Ours._make([3, 4, ()])) is Ours


@pytest.mark.parametrize("kind", [Ours, Standard])
def test_they_refuse_alike(kind: typing.Any) -> None:
    for wrong in (lambda: kind(), lambda: kind(1, 2, (), 4), lambda: kind(1, z=1), lambda: kind._make([])):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(AttributeError):
        kind(1).x = 2


def test_each_kind_has_its_own_constructor() -> None:
    class Pair(records.NamedTuple):
        left: int
        right: int

    assert Pair(1, 2) == (1, 2)
    assert Ours(1) == (1, 2, ())
    assert Pair(right=1, left=2) == (2, 1)
