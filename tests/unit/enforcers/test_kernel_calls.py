"""What the kernel has for a cage: told by who has looked already, or looked for."""

from __future__ import annotations

import errno

import pytest

from warmcell.cage.linux import offered
from warmcell.enforcers import kernel_calls, namespaces_witness, probe


def test_what_is_asked_for_and_what_is_told_of_are_the_same() -> None:
    assert tuple(kernel_calls.SINCE) == offered.CALLS


def test_what_a_witness_saw_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces_witness, "what_was_seen", lambda: (True, 3))
    monkeypatch.setattr(offered, "call", lambda *_: pytest.fail("the kernel was asked"))
    found = probe.measure.__wrapped__()
    assert (found.landlock_abi, found.seccomp, found.missing_calls) == (3, True, ())


def test_where_a_witness_missed_something_it_is_found_out_what(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = offered.landlock_beside_all_else()

    def without(name: str, *arguments: object) -> int:
        if name == "openat2":
            raise OSError(errno.ENOSYS, name)
        return 3 if name == "landlock_create_ruleset" else 0

    monkeypatch.setattr(offered, "call", without)
    assert whole and offered.landlock_beside_all_else() == 0
    monkeypatch.setattr(namespaces_witness, "what_was_seen", lambda: (True, 0))
    found = probe.measure.__wrapped__()
    assert (found.landlock_abi, found.missing_calls) == (3, ("openat2",))
    assert [name for name, _, _ in found.reasons] == ["openat2"]


@pytest.mark.parametrize(("number", "told"), [(errno.EOPNOTSUPP, "notifications"), (errno.EPERM, "filter")])
def test_without_filters_nothing_is_whole(monkeypatch: pytest.MonkeyPatch, number: int, told: str) -> None:
    def without(name: str, *arguments: object) -> int:
        if name == "seccomp":
            raise OSError(number, name)
        return 3

    monkeypatch.setattr(offered, "call", without)
    missing = kernel_calls.missing_seccomp()
    assert missing is not None and told in missing.reason
    assert offered.landlock_beside_all_else() == 0
