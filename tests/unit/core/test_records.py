"""Records behave as the standard data classes do, which type checkers take them for."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from typing import Any

import pytest

from warmcell.core import records


@records.dataclass(frozen=True, slots=True)
class Ours:
    """A point."""

    x: int
    y: int = 2
    tags: list[str] = records.field(default_factory=list)
    note: str = records.field(default="", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")

    @property
    def total(self) -> int:
        return self.x + self.y


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    """A point."""

    x: int
    y: int = 2
    tags: list[str] = dataclasses.field(default_factory=list)
    note: str = dataclasses.field(default="", kw_only=True, repr=False)


@records.dataclass(slots=True)
class Open:
    x: int = 1


def test_it_is_shown_compared_and_matched_the_same() -> None:
    ours, theirs = Ours(1, tags=["a"], note="n"), Theirs(1, tags=["a"], note="n")
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours == Ours(1, 2, ["a"], note="n") and ours != Ours(1, 2, ["a"]) and ours != theirs
    assert Ours.__match_args__ == Theirs.__match_args__ and Ours.__doc__ == Theirs.__doc__
    assert Ours.__slots__ == Theirs.__slots__ and ours.total == 3
    assert Ours(1).tags is not Ours(1).tags


def test_the_first_and_the_tenth_are_made_the_same() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Fresh:
        x: int
        y: list[int] = records.field(default_factory=list, kw_only=True)

    made = [Fresh(1) for _ in range(10)]
    assert all(each == made[0] for each in made) and len({id(each.y) for each in made}) == 10
    assert [Fresh(x=2, y=[3]) == Fresh(2, y=[3]) for _ in range(3)] == [True] * 3
    with pytest.raises(TypeError):
        Fresh(1, [2])  # type: ignore[misc]


def test_the_standard_functions_work_on_it() -> None:
    ours, theirs = Ours(1, tags=["a"]), Theirs(1, tags=["a"])
    assert dataclasses.is_dataclass(ours) and dataclasses.is_dataclass(Ours)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert [repr(item) for item in dataclasses.fields(Ours)] == [repr(item) for item in dataclasses.fields(Theirs)]
    assert dataclasses.replace(ours, y=5) == records.replace(ours, y=5) == Ours(1, 5, ["a"])
    assert list(inspect.signature(Ours).parameters) == list(inspect.signature(Theirs).parameters)


@pytest.mark.parametrize("call", [lambda: Ours(), lambda: Ours(1, 2, [], "n"), lambda: Ours(1, z=1)])
def test_wrong_arguments_are_refused(call: Any) -> None:
    with pytest.raises(TypeError, match=r"Ours\.__init__\(\)"):
        call()


def test_checks_run_for_copies_too() -> None:
    with pytest.raises(ValueError):
        Ours(-1)
    with pytest.raises(ValueError):
        records.replace(Ours(1), x=-1)


def test_it_is_frozen_or_open() -> None:
    ours: Any = Ours(1, tags=[])
    for change in (lambda: setattr(ours, "x", 2), lambda: delattr(ours, "x"), lambda: setattr(ours, "z", 2)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert hash(Ours(1, tags=())) == hash(Ours(1, tags=()))  # type: ignore[arg-type]
    changeable = Open()
    changeable.x = 5
    assert changeable == Open(5)
    with pytest.raises(TypeError):
        hash(changeable)


def test_it_can_be_pickled_and_copied() -> None:
    ours = Ours(1, tags=["a"], note="n")
    assert pickle.loads(pickle.dumps(ours)) == copy.copy(ours) == copy.deepcopy(ours) == ours


class Named(Ours):
    """As somebody might extend one."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(7)
        object.__setattr__(self, "name", name)


@records.dataclass(frozen=True, slots=True)
class Base:
    x: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Derived(Base):
    y: int = 2


def test_others_may_extend_it() -> None:
    assert [(item.x, item.name) for item in (Named("a"), Named("b"))] == [(7, "a"), (7, "b")]
    assert dataclasses.asdict(Derived(3)) == {"x": 3, "y": 2} and Derived(3) == Derived(3, 2)
    assert Base(5).x == 5


def test_what_the_standard_module_looks_for_is_made_once() -> None:
    """It is a class made anew: where every run looked for it, most of a server's time went there."""
    assert Ours.__dataclass_fields__ is Ours.__dataclass_fields__  # type: ignore[attr-defined]
    assert [item.name for item in dataclasses.fields(Base)] == ["x"] and list(Base.__dataclass_fields__) == ["x"]


def test_it_brings_nothing_along() -> None:
    script = "import sys, warmcell.core.types; print([n for n in ('dataclasses', 'inspect') if n in sys.modules])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
