"""What the kernel supports of a cage: reported by a manager that has tried, or probed."""

from __future__ import annotations

import errno

import pytest

from warmcell.cage.linux import kernel_support, syscall_numbers
from warmcell.enforcers import kernel_calls, namespaces_report, probe


def test_requested_and_reported_languages_are_the_same() -> None:
    assert tuple(kernel_calls.SINCE) == kernel_support.CALLS


def test_what_a_witness_saw_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces_report, "read_report", lambda: (True, 3))
    monkeypatch.setattr(kernel_support, "call", lambda *_: pytest.fail("the kernel was asked"))
    found = probe.measure.__wrapped__()
    assert (found.landlock_abi, found.seccomp, found.missing_calls) == (3, True, ())


def test_where_a_witness_missed_something_it_is_found_out_what(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kernel_support.landlock_version_if_complete()

    def without(name: str, *arguments: object) -> int:
        if name == "openat2":
            raise OSError(errno.ENOSYS, name)
        return 3 if name == "landlock_create_ruleset" else 0

    monkeypatch.setattr(kernel_support, "call", without)
    assert whole and kernel_support.landlock_version_if_complete() == 0
    monkeypatch.setattr(namespaces_report, "read_report", lambda: (True, 0))
    found = probe.measure.__wrapped__()
    assert (found.landlock_abi, found.missing_calls) == (3, ("openat2",))
    assert [name for name, _, _ in found.reasons] == ["openat2"]


@pytest.mark.parametrize(("number", "told"), [(errno.EOPNOTSUPP, "notifications"), (errno.EPERM, "filter")])
def test_without_filters_nothing_is_whole(monkeypatch: pytest.MonkeyPatch, number: int, told: str) -> None:
    def without(name: str, *arguments: object) -> int:
        if name == "seccomp":
            raise OSError(number, name)
        return 3

    monkeypatch.setattr(kernel_support, "call", without)
    missing = kernel_calls.missing_seccomp()
    assert missing is not None and told in missing.reason
    assert kernel_support.landlock_version_if_complete() == 0


def test_on_an_unknown_machine_everything_is_missing_for_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "NUMBERS", {})
    found = probe.measure.__wrapped__()
    assert (found.user_namespaces, found.landlock_abi, found.seccomp) == (False, 0, False)
    assert found.missing_calls == kernel_support.CALLS
    assert all("does not know the system calls" in reason for _, reason, _ in found.reasons)


@pytest.mark.parametrize(
    ("kernel", "is_64_bit", "machine"),
    [
        ("x86_64", True, "x86_64"),
        ("i686", True, "x86_64"),
        ("armv8l", True, "aarch64"),
        ("riscv64", True, "riscv64"),
        ("aarch64", False, "32-bit aarch64"),
    ],
)
def test_the_machine_is_that_of_this_process(kernel: str, is_64_bit: bool, machine: str) -> None:
    assert syscall_numbers.machine_of(kernel, is_64_bit) == machine
