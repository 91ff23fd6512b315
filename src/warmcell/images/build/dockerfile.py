"""Parses Dockerfiles into instructions with heredocs, and expands quotes, escapes, `$x` and `${x:-y}`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass, field

MAX_BYTES = 1 << 20
_MOST_INSTRUCTIONS, _MOST_FLAGS = 2000, 32
_DIRECTIVE = re.compile(r"#\s*([a-zA-Z]+)\s*=\s*(\S+)\s*")
_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)(?:\s+|$)")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
#: Not `<<<`, a here-string of the shell.
_HEREDOC = re.compile(r"(?<![<\w])<<(-?)([\"']?)([A-Za-z_]\w*)\2(?=[\s;)&|>]|$)")
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")
_WITH_FLAGS = ("FROM", "RUN", "COPY", "ADD", "HEALTHCHECK")


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A document after an instruction. `is_literal`: its delimiter was quoted, so variables are not expanded."""

    name: str
    content: str
    is_literal: bool
    #: The original text, with its delimiter.
    source: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `rest` is what follows its name and flags."""

    name: str
    rest: str
    line: int
    text: str
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    heredocs: tuple[Heredoc, ...] = ()

    def json_words(self) -> tuple[str, ...] | None:
        """The words of the exec form, `["a", "b"]`; None if it is not in that form."""
        if not self.rest.startswith("["):
            return None
        try:
            found = json.loads(self.rest)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            return None
        for word in found:
            check_text(word, "a word of the exec form")
        return tuple(found)

    def error(self, message: str, hint: str | None = None) -> InvalidRequest:
        return InvalidRequest(f"line {self.line}: {self.name}: {message}", field="dockerfile", hint=hint)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    instructions: tuple[Instruction, ...]
    #: The character that continues lines and escapes the next character.
    escape: str = "\\"


def check_text(text: str, what: str) -> None:
    """Refuse null bytes and lone surrogates: programs, file names and variables cannot contain them."""
    if "\0" in text:
        raise InvalidRequest(f"{what} contains a null byte", field="dockerfile")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidRequest(f"{what} is not valid Unicode", field="dockerfile")


def parse_dockerfile(text: str) -> Dockerfile:
    """`InvalidRequest` names the line."""
    check_text(text, "the Dockerfile")
    lines = text.removeprefix("\ufeff").splitlines()
    escape = _escape_character(lines)
    found = list(_Reader(lines, escape).instructions())
    if not any(instruction.name == "FROM" for instruction in found):
        raise InvalidRequest("has no FROM instruction", field="dockerfile")
    if len(found) > _MOST_INSTRUCTIONS:
        raise InvalidRequest(f"has more than {_MOST_INSTRUCTIONS} instructions", field="dockerfile")
    return Dockerfile(tuple(found), escape)


def _escape_character(lines: list[str]) -> str:
    """The escape character that a directive, a comment on the first lines, sets."""
    for line in lines:
        directive = _DIRECTIVE.fullmatch(line.strip())
        if directive is None:
            break
        if directive[1].lower() == "escape":
            if directive[2] not in ("\\", "`"):
                raise InvalidRequest(f"unknown escape character {directive[2]!r}", field="dockerfile")
            return directive[2]
    return "\\"


class _Reader:
    def __init__(self, lines: list[str], escape: str) -> None:
        self._lines, self._escape = lines, escape
        self._at = 0

    def instructions(self) -> Iterator[Instruction]:
        while self._at < len(self._lines):
            number = self._at + 1
            text = self._next_logical_line()
            if text.strip():
                yield self._make(text.strip(), number)

    def _next_logical_line(self) -> str:
        """Comments and empty lines between continued lines are left out, as every builder does."""
        parts: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if line.lstrip().startswith("#") or (parts and not line.strip()):
                continue
            stripped = line.rstrip()
            if stripped.endswith(self._escape):
                parts.append(stripped[:-1])
                continue
            parts.append(line)
            break
        return "".join(parts)

    def _make(self, text: str, number: int) -> Instruction:
        found = _INSTRUCTION.match(text)
        if found is None:
            raise InvalidRequest(f"line {number}: not an instruction: {text[:80]!r}", field="dockerfile")
        name, rest = found[1].upper(), text[found.end() :]
        flags: dict[str, tuple[str, ...]] = {}
        while name in _WITH_FLAGS and (flag := _FLAG.match(rest)):
            if sum(map(len, flags.values())) > _MOST_FLAGS:
                raise InvalidRequest(f"line {number}: too many flags", field="dockerfile")
            flags[flag[1]] = (*flags.get(flag[1], ()), flag[2] or "")
            rest = rest[flag.end() :]
        heredocs = tuple(self._heredocs(rest, number)) if name in _WITH_HEREDOCS else ()
        return Instruction(name, rest.strip(), number, text, flags, heredocs)

    def _heredocs(self, rest: str, number: int) -> Iterator[Heredoc]:
        for dash, quote, name in _HEREDOC.findall(rest):
            taken: list[str] = []
            while self._at < len(self._lines) and _without_tabs(self._lines[self._at], dash) != name:
                taken.append(self._lines[self._at])
                self._at += 1
            if self._at == len(self._lines):
                raise InvalidRequest(f"line {number}: the heredoc {name} has no end", field="dockerfile")
            self._at += 1
            content = "".join(_without_tabs(line, dash) + "\n" for line in taken)
            source = "".join(f"{line}\n" for line in (*taken, name))
            yield Heredoc(name, content, bool(quote), source)


def _without_tabs(line: str, dash: str) -> str:
    return line.lstrip("\t") if dash else line


def is_heredoc_alone(rest: str) -> bool:
    """Whether an instruction has nothing but the beginning of one heredoc."""
    return _HEREDOC.fullmatch(rest.strip()) is not None


def heredoc_name(word: str) -> str | None:
    """The name of the heredoc that a word begins."""
    found = _HEREDOC.fullmatch(word)
    return found[3] if found else None


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_CHARACTERS = 1 << 20
#: Of a whole build. A configuration has 8 MiB at most, a step's variables 2.
_MOST_IN_ALL = 16 << 20
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
            at += 1  # skip the escaped character
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        at += 1
    return [*words, text[start:]] if start >= 0 else words


def expand(text: str, variables: Mapping[str, str], escape: str = "\\", *, has_quotes: bool = True) -> str:
    """Replace variables and remove quotes. `has_quotes=False`: quotes are ordinary characters."""
    return _Expansion(text, variables, escape, has_quotes).run()


class Expansions:
    """Expands the text of one build and limits the total, which is kept: many names may repeat one long value."""

    def __init__(self) -> None:
        self._size = 0

    def expand(self, text: str, variables: Mapping[str, str], escape: str = "\\", *, has_quotes: bool = True) -> str:
        found = expand(text, variables, escape, has_quotes=has_quotes)
        self._size += len(found)
        if self._size > _MOST_IN_ALL:
            raise _problem(f"the instructions expand to more than {_MOST_IN_ALL} characters")
        return found


class _Expansion:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str, has_quotes: bool, depth: int = 0) -> None:
        self._text, self._variables, self._escape = text, variables, escape
        self._has_quotes, self._depth = has_quotes, depth
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
        """Append text. Its length is limited: `ENV a=$a$a` doubles."""
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
        """In double quotes, only the escape character, quotes and dollar signs can be escaped."""
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
        """The rest of the text inside the braces; the position is after them afterwards."""
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
