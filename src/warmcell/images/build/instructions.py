"""Turns instructions of a Dockerfile into steps, given the current variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from warmcell.images.build.dockerfile import (
    Expansions,
    Heredoc,
    Instruction,
    heredoc_name,
    is_heredoc_alone,
    split_words,
)
from warmcell.images.build.steps import Configure, Copy, Env, Run, Step, User, Workdir

_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*://|git@)", re.IGNORECASE)
_LONGEST_DURATION = 100
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)")
_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_HEALTH = {flag: flag.title().replace("-", "") for flag in ("interval", "timeout", "start-period", "start-interval")}
_PORT = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?(?:/(tcp|udp|sctp))?")
#: All that there are: each of many words may repeat them.
_MOST_PORTS = 3 * 65535
_FLAGS: dict[str, frozenset[str]] = {
    "RUN": frozenset({"network"}),
    "COPY": frozenset({"from", "chown", "chmod", "link", "exclude"}),
    "ADD": frozenset({"chown", "chmod", "link", "exclude"}),
    "HEALTHCHECK": frozenset({*_HEALTH, "retries"}),
}


class Interpreter:
    """`variables` are those of ENV and ARG; `args`, of ARG alone, are added to the environment of commands."""

    def __init__(
        self,
        variables: Mapping[str, str],
        args: Mapping[str, str],
        shell: tuple[str, ...],
        escape: str = "\\",
        expansions: Expansions | None = None,
    ) -> None:
        self._variables, self._args, self._shell, self._escape = variables, args, shell, escape
        self._expansions = expansions or Expansions()

    def make_step(self, instruction: Instruction) -> Step:
        """`InvalidRequest` names the line."""
        make = _MAKERS.get(instruction.name)
        if make is None:
            raise instruction.error("unknown or unsupported instruction")
        unknown = set(instruction.flags) - _FLAGS.get(instruction.name, frozenset())
        if unknown:
            raise instruction.error(f"--{min(unknown)} is not supported")
        if not instruction.rest:
            raise instruction.error("has no arguments")
        return make(self, instruction)

    def _expand(self, text: str, *, has_quotes: bool = True) -> str:
        return self._expansions.expand(text, self._variables, self._escape, has_quotes=has_quotes)

    def _words(self, instruction: Instruction) -> list[str]:
        found = instruction.json_words()
        if found is not None:
            return [self._expand(word, has_quotes=False) for word in found]
        return [self._expand(word) for word in split_words(instruction.rest, self._escape)]

    def _pairs(self, instruction: Instruction) -> dict[str, str]:
        """`k=v k2="v 2"`, or the old form with one name and the rest of the line."""
        words = split_words(instruction.rest, self._escape)
        if "=" not in words[0]:
            parts = instruction.rest.split(None, 1)
            if len(parts) != 2:
                raise instruction.error("write it as NAME=VALUE")
            return {self._expand(parts[0]): self._expand(parts[1])}
        pairs = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise instruction.error(f"{word!r} is not NAME=VALUE")
            pairs[self._expand(name)] = self._expand(value)
        return pairs

    def _command_line(self, instruction: Instruction) -> list[str]:
        """The words of the exec form, or the shell and the shell form's text."""
        found = instruction.json_words()
        return list(found) if found is not None else [*self._shell, instruction.rest]

    # ---- instructions that need more than a line of `_MAKERS` ----

    def _run(self, instruction: Instruction) -> Step:
        network = instruction.flags.get("network", ("default",))[-1]
        if network not in ("default", "none"):
            raise instruction.error(f"--network={network} is not supported", "the build's policy has the network rules")
        common: Any = {"env": dict(self._args), "has_network": network == "default", "text": instruction.text}
        found = instruction.json_words()
        if found is not None:
            return Run(found, **common)
        if not instruction.heredocs:
            return Run(instruction.rest, **common)
        if not is_heredoc_alone(instruction.rest):
            documents = "".join(document.source for document in instruction.heredocs)
            return Run(f"{instruction.rest}\n{documents}", **common)
        content = instruction.heredocs[0].content
        return Run("", script=content, **common) if content.startswith("#!") else Run(content, **common)

    def _copy(self, instruction: Instruction) -> Step:
        exec_form = instruction.json_words()
        raw = split_words(instruction.rest, self._escape) if exec_form is None else exec_form
        documents = {document.name: document for document in instruction.heredocs}
        inline = {name: self._document(documents[name]) for word in raw if (name := heredoc_name(word)) in documents}
        words = [word for word in self._words(instruction) if heredoc_name(word) is None]
        if len(words) + len(inline) < 2 or not words:
            raise instruction.error("needs a source and a destination")
        *sources, destination = words
        if instruction.name == "ADD" and any(_URL.match(source) for source in sources):
            hint = "download it in a RUN step, or put it into the context and COPY it"
            raise instruction.error("URLs are not supported", hint)
        return Copy(
            sources=tuple(sources),
            destination=destination,
            source=self._flag(instruction, "from") or None,
            chown=self._flag(instruction, "chown"),
            chmod=self._mode(instruction),
            inline=inline,
            unpacks=instruction.name == "ADD",
            exclude=tuple(self._expand(text) for text in instruction.flags.get("exclude", ())),
            text=instruction.text,
        )

    def _document(self, document: Heredoc) -> bytes:
        if document.is_literal:
            return document.content.encode()
        return self._expand(document.content, has_quotes=False).encode()

    def _flag(self, instruction: Instruction, name: str) -> str:
        return self._expand(instruction.flags.get(name, ("",))[-1])

    def _mode(self, instruction: Instruction) -> int | None:
        text = self._flag(instruction, "chmod")
        if not text:
            return None
        try:
            mode = int(text, 8)
        except ValueError:
            raise instruction.error(f"--chmod={text} is not an octal mode such as 755") from None
        if not 0 <= mode <= 0o7777:
            raise instruction.error(f"--chmod={text} is not a mode")
        return mode

    def _set_shell(self, instruction: Instruction) -> Step:
        found = instruction.json_words()
        if not found:
            raise instruction.error('write it as ["program", "argument"]')
        return Configure({"Shell": list(found)}, instruction.text)

    def _expose(self, instruction: Instruction) -> Step:
        ports: dict[str, dict[str, object]] = {}
        count = 0
        for word in self._words(instruction):
            found = _PORT.fullmatch(word)
            first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if found is None or not 0 < first <= last <= 65535:
                raise instruction.error(f"{word!r} is not a port")
            count += last - first + 1
            if count > _MOST_PORTS:
                raise instruction.error(f"has more than {_MOST_PORTS} ports")
            ports |= {f"{port}/{found[3] or 'tcp'}": {} for port in range(first, last + 1)}
        return Configure({"ExposedPorts": ports}, instruction.text)

    def _healthcheck(self, instruction: Instruction) -> Step:
        if instruction.rest.upper() == "NONE":
            return Configure({"Healthcheck": {"Test": ["NONE"]}}, instruction.text)
        kind, _, rest = instruction.rest.partition(" ")
        if kind.upper() != "CMD" or not rest.strip():
            raise instruction.error("write it as HEALTHCHECK CMD command, or HEALTHCHECK NONE")
        command = Instruction(instruction.name, rest.strip(), instruction.line, instruction.text)
        found = command.json_words()
        check: dict[str, Any] = {"Test": ["CMD", *found] if found is not None else ["CMD-SHELL", command.rest]}
        for flag, values in instruction.flags.items():
            if flag in _HEALTH:
                check[_HEALTH[flag]] = _nanoseconds(values[-1], instruction)
            elif values[-1].isdecimal():
                check["Retries"] = int(values[-1])
            else:
                raise instruction.error(f"--retries={values[-1]} is not a number")
        return Configure({"Healthcheck": check}, instruction.text)


def _nanoseconds(text: str, instruction: Instruction) -> int:
    parts = _DURATION.findall(text[:_LONGEST_DURATION])  # matching takes quadratic time
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise instruction.error(f"{text[:_LONGEST_DURATION]!r} is not a duration such as 30s")
    return sum(round(float(number) * _NANOSECONDS[unit]) for number, unit in parts)


_MAKERS: dict[str, Callable[[Interpreter, Instruction], Step]] = {
    "RUN": Interpreter._run,
    "COPY": Interpreter._copy,
    "ADD": Interpreter._copy,
    "ENV": lambda own, item: Env(own._pairs(item), item.text),
    "LABEL": lambda own, item: Configure({"Labels": own._pairs(item)}, item.text),
    "MAINTAINER": lambda own, item: Configure({"Labels": {"maintainer": own._expand(item.rest)}}, item.text),
    "WORKDIR": lambda own, item: Workdir(own._expand(item.rest), item.text),
    "USER": lambda own, item: User(own._expand(item.rest), item.text),
    "CMD": lambda own, item: Configure({"Cmd": own._command_line(item)}, item.text),
    "ENTRYPOINT": lambda own, item: Configure({"Entrypoint": own._command_line(item)}, item.text),
    "SHELL": Interpreter._set_shell,
    "STOPSIGNAL": lambda own, item: Configure({"StopSignal": own._expand(item.rest)}, item.text),
    "VOLUME": lambda own, item: Configure({"Volumes": {path: {} for path in own._words(item)}}, item.text),
    "EXPOSE": Interpreter._expose,
    "HEALTHCHECK": Interpreter._healthcheck,
}
