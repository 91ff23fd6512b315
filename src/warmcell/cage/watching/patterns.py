"""Regular expressions for files of /proc, compiled shortly before the first look: most runs end before that."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Union


class Pattern:
    """A multi-line pattern, compiled later."""

    def __init__(self, text: Union[str, bytes]) -> None:
        self._text = text
        #: As in `re`.
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
