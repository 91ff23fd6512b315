"""The plan's codec decodes what it encoded and accepts nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.cage.plan import Bind, LaunchPlan, PlanError, Watch, decode, encode, put_sources, take_sources

_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_NUMBER = st.integers(0, 1 << 62)
_BINDS = st.lists(st.builds(Bind, _TEXT, _TEXT, st.booleans(), _TEXT, st.booleans(), st.booleans()), max_size=4).map(
    tuple
)


def _pairs(second: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(_TEXT, second), max_size=4).map(tuple)


_WATCHES = st.builds(Watch, _NUMBER, st.floats(0, 1e9), _NUMBER, st.lists(_TEXT, max_size=3).map(tuple))
_PLANS = st.builds(
    LaunchPlan,
    isolation=_TEXT,
    network=_TEXT,
    listener_port=_NUMBER,
    hostname=_TEXT,
    binds=_BINDS,
    symlinks=_pairs(_TEXT),
    files=_pairs(_TEXT),
    scratch_bytes=_NUMBER,
    scratch_inodes=_NUMBER,
    scratch_dirs=_pairs(_NUMBER),
    cwd=_TEXT,
    rlimits=_pairs(_NUMBER),
    landlock=_pairs(st.booleans()),
    seccomp=st.booleans(),
    allow_spawn=st.booleans(),
    watch=_WATCHES,
    report_path=_TEXT,
)


@given(_PLANS)
def test_round_trip(plan: LaunchPlan) -> None:
    again = decode(json.loads(encode(plan)))
    assert again == plan
    assert encode(again) == encode(plan)


@given(_PLANS)
def test_sources_of_paths_go_apart_and_come_back(plan: LaunchPlan) -> None:
    common, sources = take_sources(plan)
    assert put_sources(common.binds, json.loads(json.dumps(sources))) == plan.binds
    assert not any(bind.source or bind.identity for bind in common.binds if bind.as_owner)


@pytest.mark.parametrize("sources", [None, {}, [], [["/a"]], [["/a", 1]], [["/a", "", ""]], [["/a", ""]] * 2, ["/a"]])
def test_sources_that_do_not_fit_are_refused(sources: Any) -> None:
    binds = (Bind("", "/b", as_owner=True), Bind("/usr", "/usr"))
    assert put_sources(binds, [["/a", "1:2"]]) == (Bind("/a", "/b", False, "1:2", as_owner=True), binds[1])
    with pytest.raises(PlanError):
        put_sources(binds, sources)


def _plain() -> dict[str, Any]:
    plan = LaunchPlan(
        binds=(Bind("/a", "/b"),),
        symlinks=(("/l", "t"),),
        files=(("/f", "x"),),
        scratch_dirs=(("/tmp", 0o1777),),
        rlimits=(("core", 0),),
        landlock=(("/", False),),
        watch=Watch(1, 2.0, 3, ("/w",)),
    )
    data: dict[str, Any] = json.loads(encode(plan))
    return data


def _records(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"plan": data, "bind": data["binds"][0], "watch": data["watch"]}


_PLACES = [(record, name) for record, fields in _records(_plain()).items() for name in fields]


@pytest.mark.parametrize(("record", "name"), _PLACES)
def test_a_missing_field_is_refused(record: str, name: str) -> None:
    data = _plain()
    del _records(data)[record][name]
    with pytest.raises(PlanError):
        decode(data)


@pytest.mark.parametrize("record", ["plan", "bind", "watch"])
def test_an_unknown_field_is_refused(record: str) -> None:
    data = _plain()
    _records(data)[record]["privileged"] = True
    with pytest.raises(PlanError):
        decode(data)


_ODD: list[Any] = [None, True, 0, 1.5, "x", [], {}, [1], [["a"]], [["a", None]]]


def _is_right(right: Any, wrong: Any) -> bool:
    """Whether a value is valid after all: a whole number for a float, an empty list for a list of anything."""
    if isinstance(right, float):
        return type(wrong) in (int, float)
    return type(wrong) is type(right) and wrong not in ({}, [1], [["a"]], [["a", None]])


_WRONG = [
    (record, name, wrong)
    for record, fields in _records(_plain()).items()
    for name, right in fields.items()
    for wrong in _ODD
    if not _is_right(right, wrong) and not (name in ("gpus", "disk_devices") and wrong == [1])
]


@pytest.mark.parametrize(("record", "name", "wrong"), _WRONG, ids=repr)
def test_every_field_must_be_of_its_type(record: str, name: str, wrong: Any) -> None:
    data = _plain()
    _records(data)[record][name] = wrong
    with pytest.raises(PlanError):
        decode(data)


@pytest.mark.parametrize("data", [None, [], "plan", 7, {}, [{}]], ids=repr)
def test_data_that_is_not_an_object_is_refused(data: Any) -> None:
    with pytest.raises(PlanError):
        decode(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | _TEXT, lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner)
    )
)
def test_arbitrary_data_is_refused_by_name(data: Any) -> None:
    with pytest.raises(PlanError):
        decode(data)
