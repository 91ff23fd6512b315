"""What a policy may write for a host: `example.com`, `*.example.com`, `*`, `10.1.2.3`, each with `:port`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from warmcell.core.errors import PolicyViolation
from warmcell.net.rules.hosts import Host, HostError, IPAddress, parse_policy_host

_PORT = re.compile(r"(.*[^:]):([0-9]{1,5})", re.DOTALL)
_BRACKETED_PORT = re.compile(r"(\[.*\]):([0-9]{1,5})", re.DOTALL)


class Reach(StrEnum):
    """How much a pattern covers."""

    EXACT = "exact"
    BELOW = "below"
    ANY_NAME = "any name"


@dataclass(frozen=True, slots=True)
class HostPattern:
    """One host, the true subdomains of one, or every name. Address literals only match patterns that are literals."""

    reach: Reach
    host: Host | None

    def matches(self, host: Host) -> bool:
        if self.reach is Reach.EXACT:
            return host == self.host
        if host.address is not None:
            return False
        return self.reach is Reach.ANY_NAME or host.name.endswith(f".{self.host}")

    @property
    def address(self) -> IPAddress | None:
        return None if self.host is None else self.host.address


def parse_pattern(text: str) -> HostPattern:
    """The pattern, or `PolicyViolation` that quotes what the policy's author wrote."""
    if text == "*":
        return HostPattern(Reach.ANY_NAME, None)
    below = text.startswith("*.")
    try:
        host = parse_policy_host(text[2:] if below else text)
    except HostError as error:
        raise PolicyViolation(
            f"{text!r} is not a domain, '*.domain' or IP address: {error}", hint="write it without scheme and path"
        ) from None
    if below and host.address is not None:
        raise PolicyViolation(f"{text!r}: an IP address has no subdomains")
    return HostPattern(Reach.BELOW if below else Reach.EXACT, host)


def parse_entry(text: str) -> tuple[HostPattern, int | None]:
    """A pattern with an optional port, as in `allowed_domains`."""
    if not isinstance(text, str):
        raise PolicyViolation(f"a domain is text, not {type(text).__name__}")
    found = _BRACKETED_PORT.fullmatch(text) if text.startswith("[") else _single_colon(text)
    if found is None:
        return parse_pattern(text), None
    port = int(found.group(2))
    if not 1 <= port <= 65535:
        raise PolicyViolation(f"{text!r} has a port outside 1 to 65535")
    return parse_pattern(found.group(1)), port


def _single_colon(text: str) -> re.Match[str] | None:
    return _PORT.fullmatch(text) if text.count(":") == 1 else None


def parse_injection(text: str) -> tuple[HostPattern, bool]:
    """Where credentials go: a pattern, and whether they may go in the clear, which takes `http://` before the host."""
    in_clear = text.startswith("http://")
    return parse_pattern(text.removeprefix("http://")), in_clear
