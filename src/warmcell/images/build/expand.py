"""Words and variables of Dockerfiles: quotes, escapes, `$x`, `${x:-y}` and the like. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from warmcell.core.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_CHARACTERS = 1 << 20
_DEEPEST = 32


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Words between spaces. Quotes and escapes keep spaces together and stay in the words, for `expand`."""
    words: list[str] = []
    start, quote, at = -1, "", 0
    while at < len(text):
        letter = text[at]
        is_space = letter.isspace() and not quote
        if is_space and start >= 0:
            words.append(text[start:at])
        start = -1 if is_space else at if start < 0 else start
        if letter == escape and quote != "'":
            at += 1  # and the next character, whatever it is
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        at += 1
    return [*words, text[start:]] if start >= 0 else words


def expand(text: str, variables: Mapping[str, str], escape: str = "\\", *, has_quotes: bool = True) -> str:
    """The text with variables replaced, and without its quotes. `has_quotes=False`: quotes are ordinary characters."""
    return _Expansion(text, variables, escape, has_quotes).run()


class _Expansion:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str, has_quotes: bool, depth: int = 0) -> None:
        self._text = text
        self._variables = variables
        self._escape = escape
        self._has_quotes = has_quotes
        self._depth = depth
        self._at = 0
        self._out: list[str] = []
        self._size = 0

    def run(self) -> str:
        if self._depth > _DEEPEST:
            raise _problem("braces are nested too deeply")
        quote = ""
        while self._at < len(self._text):
            letter = self._text[self._at]
            self._at += 1
            if letter == "'" and self._has_quotes and not quote:
                self._put(self._until("'"))
            elif letter == '"' and self._has_quotes:
                quote = "" if quote else letter
            elif letter == self._escape and self._at < len(self._text):
                self._put(self._escape_next(quote))
            elif letter == "$":
                self._put(self._variable())
            else:
                self._put(letter)
        if quote:
            raise _problem("a quote has no end")
        return "".join(self._out)

    def _put(self, text: str) -> None:
        """Bounded: `ENV a=$a$a` doubles."""
        self._size += len(text)
        if self._size > _MOST_CHARACTERS:
            raise _problem(f"a word expands to more than {_MOST_CHARACTERS} characters")
        self._out.append(text)

    def _until(self, end: str) -> str:
        place = self._text.find(end, self._at)
        if place < 0:
            raise _problem("a quote has no end")
        taken, self._at = self._text[self._at : place], place + 1
        return taken

    def _escape_next(self, quote: str) -> str:
        """In double quotes only these characters lose their meaning."""
        letter = self._text[self._at]
        self._at += 1
        return letter if not quote or letter in (self._escape, '"', "$") else self._escape + letter

    def _variable(self) -> str:
        if self._text.startswith("{", self._at):
            self._at += 1
            return self._in_braces()
        found = _NAME.match(self._text, self._at)
        if found is None:
            return "$"
        self._at = found.end()
        return self._variables.get(found[0], "")

    def _in_braces(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise _problem("bad substitution")
        self._at = found.end()
        value = self._variables.get(found[0])
        inside = self._matching_brace()
        if not inside:
            return value or ""
        operator = inside[:2] if inside[:1] == ":" else inside[:1]
        is_set = bool(value) if operator.startswith(":") else value is not None
        if operator[-1:] not in ("-", "+", "?"):
            raise _problem(f"the operator {operator!r} is not supported")
        if operator.endswith("-"):
            return value or "" if is_set else self._expand_inside(inside[len(operator) :])
        if operator.endswith("+"):
            return self._expand_inside(inside[len(operator) :]) if is_set else ""
        if not is_set:
            raise _problem(f"{found[0]}: {self._expand_inside(inside[len(operator) :]) or 'is not set'}")
        return value or ""

    def _matching_brace(self) -> str:
        """What is left inside the braces, and then the position after them."""
        depth, start = 1, self._at
        while self._at < len(self._text):
            letter = self._text[self._at]
            self._at += 1
            if letter == self._escape:
                self._at += 1
            depth += (letter == "{") - (letter == "}")
            if depth == 0:
                return self._text[start : self._at - 1]
        raise _problem("a brace has no end")

    def _expand_inside(self, text: str) -> str:
        return _Expansion(text, self._variables, self._escape, self._has_quotes, self._depth + 1).run()


def _problem(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="dockerfile")
