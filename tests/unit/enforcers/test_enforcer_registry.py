"""Enforcers by name, and the choice of the best one that works."""

from __future__ import annotations

from typing import Any

import pytest

from warmcell import Sandbox
from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import EnforcerUnavailable, InvalidRequest
from warmcell.core.types import ExecRequest
from warmcell.enforcers import registry
from warmcell.enforcers.contract import SandboxEnforcer
from warmcell.enforcers.registry import ENFORCERS, get_enforcer, prove_enforcer


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
    assert tuple(ENFORCERS) == ("native", "bubblewrap", "seatbelt", "appcontainer", "landlock")


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
    with pytest.raises(EnforcerUnavailable, match="no enforcer supports plan9") as caught:
        get_enforcer()
    assert caught.value.hint and "WasmBackend" in caught.value.hint


def test_the_weaker_class_is_never_chosen_unasked(enforcers: dict[str, str]) -> None:
    enforcers.update(bubblewrap=f"{__name__}:Broken", landlock=f"{__name__}:Working")
    with pytest.raises(EnforcerUnavailable):
        get_enforcer()
    assert get_enforcer("landlock").name == "working"


def test_a_weaker_class_is_used_only_if_it_is_named(enforcers: dict[str, str]) -> None:
    enforcers["landlock"] = f"{__name__}:Working"
    enforcers["bubblewrap"] = f"{__name__}:Broken"
    with pytest.raises(EnforcerUnavailable):
        prove_enforcer("auto")
    assert prove_enforcer("auto", "landlock").name == "working"


def test_a_weaker_class_does_not_replace_a_better_one(enforcers: dict[str, str]) -> None:
    enforcers["landlock"] = f"{__name__}:Broken"
    assert prove_enforcer("auto", "landlock").name == "working"


@pytest.mark.parametrize(
    ("weaker", "enforcer", "message"),
    [("none", "auto", "unknown class"), ("native", "auto", "unknown class"), ("landlock", "native", "'auto' only")],
)
def test_what_may_be_weaker_is_checked(weaker: str, enforcer: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        ProcessBackend(enforcer=enforcer, allow_weaker=weaker)
    assert caught.value.field == "allow_weaker"


@pytest.mark.needs("linux", "user namespaces")
def test_a_backend_on_a_weak_host_names_its_class(enforcers: dict[str, str]) -> None:
    enforcers["landlock"] = "warmcell.enforcers.native:LandlockEnforcer"
    enforcers["bubblewrap"] = f"{__name__}:Broken"
    with ProcessBackend(allow_weaker="landlock") as backend:
        result = backend.execute_blocking(ExecRequest("python", "print(6 * 7)", 60))
    assert (result.stdout, result.enforced.enforcer) == ("42\n", "landlock")
    assert "landlock" in result.enforced.isolation_class


@pytest.mark.needs("linux", "user namespaces")
def test_a_sandbox_on_a_weak_host_names_its_class(enforcers: dict[str, str]) -> None:
    enforcers["landlock"] = "warmcell.enforcers.native:LandlockEnforcer"
    enforcers["bubblewrap"] = f"{__name__}:Broken"
    with Sandbox(allow_weaker="landlock") as sandbox:
        assert sandbox.run("print(6 * 7)").enforced.enforcer == "landlock"
    with pytest.raises(EnforcerUnavailable), Sandbox() as sandbox:
        sandbox.run("print(6 * 7)")


def test_a_wasm_sandbox_has_no_weaker_class() -> None:
    with pytest.raises(InvalidRequest) as caught, Sandbox(backend="wasm", allow_weaker="landlock") as sandbox:
        sandbox.sh("true")
    assert caught.value.field == "allow_weaker"
