"""Patterns of the kernel's files, compiled when somebody is about to look: most runs end before that."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Union


class Pattern:
    """Of lines: `^` and `$` are the ends of one."""

    def __init__(self, text: Union[str, bytes]) -> None:
        self._text = text
        #: As `re` has it.
        self.findall: Callable[[Any], List[Any]] = self._compile_first
        _waiting.append(self)

    def _compile_first(self, lines: Any) -> List[Any]:
        compile_all()
        return self.findall(lines)

    def compile(self) -> None:
        import re  # takes as long to load as everything else here

        self.findall = re.compile(self._text, re.MULTILINE).findall


_waiting: List[Pattern] = []


def compile_all() -> None:
    while _waiting:
        _waiting.pop().compile()
