"""A process that moves between namespaces returns, or exits; what it opened on the way is closed."""

from __future__ import annotations

import os

import pytest
from tests.helpers import fork_child

from warmcell.cage.linux.namespaces import ASTRAY, HomeNamespace
from warmcell.cage.manager import network_namespaces
from warmcell.cage.manager.network_namespaces import NetworkNamespaces


def test_a_process_that_cannot_return_exits() -> None:
    def lose_the_way() -> None:
        home = HomeNamespace("net")
        os.close(home._descriptor)
        home.return_home()

    _, status = os.waitpid(fork_child(lose_the_way), 0)
    assert os.waitstatus_to_exitcode(status) == ASTRAY


class _Home:
    """Without privileges: it only counts."""

    def __init__(self, kind: str) -> None:
        self.returned = 0

    def enter(self, other: int) -> None:
        """Would need privileges."""

    def return_home(self) -> None:
        self.returned += 1


def test_a_network_that_cannot_be_read_is_closed_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> tuple[bytes, ...]:
        raise OSError(24, "no descriptors left")

    monkeypatch.setattr(network_namespaces, "HomeNamespace", _Home)
    monkeypatch.setattr(network_namespaces, "_read_state", fail)
    networks = NetworkNamespaces()
    free = os.open(os.devnull, os.O_RDONLY)
    networks._free.append((0.0, free))
    with pytest.raises(OSError, match="no descriptors left"):
        networks.enter()
    assert networks._home.returned == 1  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(free)
