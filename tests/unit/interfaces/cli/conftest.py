"""The command line over a scripted backend: what it asks for, what it prints, how it ends."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from warmcell.backends.fake import FakeBackend, Reply
from warmcell.interfaces.cli import main


@dataclass
class Scripted:
    """Stands in for `ProcessBackend`: records its options and gives the replies that a test set."""

    fake: FakeBackend = field(default_factory=FakeBackend)
    made_with: dict[str, Any] = field(default_factory=dict)

    def __call__(self, **options: Any) -> FakeBackend:
        self.made_with = options
        return self.fake

    def answer(self, *replies: Reply) -> None:
        self.fake.reply(*replies)


@dataclass(frozen=True)
class Ended:
    status: int
    stdout: str
    stderr: str


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted()
    module = ModuleType("warmcell.backends.process.backend")
    module.ProcessBackend = scripted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "warmcell.backends.process.backend", module)
    return scripted


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], None]:
    """Gives the command some standard input; by default it is at its end."""

    def give(data: bytes) -> None:
        path = tmp_path_factory.mktemp("stdin") / "data"
        path.write_bytes(data)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(path.open("rb")))

    give(b"")
    return give


@pytest.fixture
def warmcell(capfdbinary: pytest.CaptureFixture[bytes], stdin: Callable[[bytes], None]) -> Callable[..., Ended]:
    """Runs the command in this process."""

    def call(*argv: str) -> Ended:
        try:
            status = main(argv)
        except SystemExit as left:
            status = int(left.code or 0)
        captured = capfdbinary.readouterr()
        return Ended(status, captured.out.decode("latin-1"), captured.err.decode("latin-1"))

    return call
