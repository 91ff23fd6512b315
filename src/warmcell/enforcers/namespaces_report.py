"""Reports of managers, which create namespaces anyway, on what the kernel supports. They make a probe unnecessary."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: Whether namespaces were created (False: failed or unknown), and the Landlock version if nothing else that a cage
    #: needs is missing (0: something is, or unknown).
    Report = tuple[bool, int]

_reporters: list[Callable[[], Report]] = []


def add_reporter(reporter: Callable[[], Report]) -> None:
    """Adds a function that returns a report. It is called at most once and may block."""
    _reporters.append(reporter)


def read_report() -> Report:
    """The best of all reports that were not read yet."""
    return max([_reporters.pop()() for _ in range(len(_reporters))], default=(False, 0))
