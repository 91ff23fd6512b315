"""What a guest of the contract does, in steps that every backend can say in a language that it has.

A test writes `(Say("so far"), Spin())`; a dialect (`dialects.py`) makes source text of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: What one step of a flood writes.
PAGE = 65536


@dataclass(frozen=True)
class Say:
    """Writes bytes or text to a stream, at once."""

    text: str | bytes
    stream: int = 1

    @property
    def data(self) -> bytes:
        return self.text if isinstance(self.text, bytes) else self.text.encode()


@dataclass(frozen=True)
class Flood:
    """Writes that many pages of "x" to a stream, or does not stop writing."""

    pages: int | None
    stream: int = 1


@dataclass(frozen=True)
class Copy:
    """Copies standard input to standard output until its end."""


@dataclass(frozen=True)
class ShowEnvironment:
    """Writes `NAME=value` for each variable that it sees, each ended by a NUL."""


@dataclass(frozen=True)
class ShowArguments:
    """Writes its arguments, each ended by a NUL."""


@dataclass(frozen=True)
class ShowFile:
    """Copies a file of its work directory to standard output."""

    path: str


@dataclass(frozen=True)
class Save:
    """Writes text to a file of its work directory."""

    path: str
    text: str


@dataclass(frozen=True)
class Spin:
    """Computes for ever."""


@dataclass(frozen=True)
class Burn:
    """Computes for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Sleep:
    """Waits without computing."""

    seconds: float


@dataclass(frozen=True)
class Allocate:
    """Takes so much memory and writes to all of it; dies where that is refused."""

    megabytes: int


@dataclass(frozen=True)
class Exit:
    """Ends with a status."""

    code: int


Step = Say | Flood | Copy | ShowEnvironment | ShowArguments | ShowFile | Save | Spin | Burn | Sleep | Allocate | Exit


@dataclass(frozen=True)
class Dialect:
    """A language, and how the steps are written in it."""

    language: str
    write: Callable[[Sequence[Step]], str]
    #: What no compiler or interpreter of it takes.
    nonsense: str
