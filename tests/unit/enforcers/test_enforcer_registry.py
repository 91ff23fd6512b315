"""Enforcers by name, and the choice of the best one that works."""

from __future__ import annotations

from typing import Any

import pytest

from warmcell.core.contracts import SandboxEnforcer
from warmcell.core.errors import EnforcerUnavailable, InvalidRequest
from warmcell.enforcers import registry
from warmcell.enforcers.registry import enforcer_names, get_enforcer


class Working:
    name = "working"

    def probe(self) -> None: ...


class Broken:
    name = "broken"

    def probe(self) -> None:
        raise EnforcerUnavailable("broken", "does not work here", hint="mend it")


@pytest.fixture
def enforcers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    table = {"native": f"{__name__}:Broken", "bubblewrap": f"{__name__}:Working"}
    monkeypatch.setattr(registry, "ENFORCERS", table)
    monkeypatch.setattr(registry.sys, "platform", "linux")  # type: ignore[attr-defined]
    return table


def test_names() -> None:
    assert enforcer_names() == ("native", "bubblewrap", "seatbelt", "appcontainer", "landlock")


@pytest.mark.parametrize("name", ["bubblewrap", "seatbelt", "appcontainer"])
def test_a_named_enforcer_is_given_without_probing(name: str) -> None:
    enforcer = get_enforcer(name)
    assert isinstance(enforcer, SandboxEnforcer) and enforcer.name == name


@pytest.mark.parametrize("name", ["docker", "", "Native", "auto", 42, ["native"]])
def test_unknown_names_are_refused(name: Any) -> None:
    with pytest.raises(InvalidRequest, match="unknown enforcer") as caught:
        get_enforcer(name)
    assert caught.value.hint and "native" in caught.value.hint


def test_the_first_that_works_is_chosen(enforcers: dict[str, str]) -> None:
    assert get_enforcer().name == "working"
    enforcers["native"] = f"{__name__}:Working"
    enforcers["bubblewrap"] = f"{__name__}:Broken"
    assert get_enforcer().name == "working"


def test_none_that_works_names_every_reason_and_remedy(enforcers: dict[str, str]) -> None:
    enforcers["bubblewrap"] = "warmcell.no_such_module:Thing"
    with pytest.raises(EnforcerUnavailable) as caught:
        get_enforcer()
    assert "broken: does not work here" in caught.value.message and "bubblewrap: is not part" in caught.value.message
    assert caught.value.hint and "mend it" in caught.value.hint and "reinstall" in caught.value.hint


def test_a_system_without_any_fails_closed(enforcers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.sys, "platform", "plan9")  # type: ignore[attr-defined]
    with pytest.raises(EnforcerUnavailable, match="none for plan9") as caught:
        get_enforcer()
    assert caught.value.hint and "WasmBackend" in caught.value.hint


def test_the_weaker_class_is_never_chosen_unasked(enforcers: dict[str, str]) -> None:
    enforcers.update(bubblewrap=f"{__name__}:Broken", landlock=f"{__name__}:Working")
    with pytest.raises(EnforcerUnavailable):
        get_enforcer()
    assert get_enforcer("landlock").name == "working"
