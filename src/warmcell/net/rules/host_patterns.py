"""Host patterns of a policy: `example.com`, `*.example.com`, `*`, `10.1.2.3`, each with optional `:port`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from warmcell.core.errors import PolicyViolation
from warmcell.net.rules.hosts import Host, HostError, IPAddress, parse_policy_host

_PORT = re.compile(r"(.*[^:]):([0-9]{1,5})", re.DOTALL)
_BRACKETED_PORT = re.compile(r"(\[.*\]):([0-9]{1,5})", re.DOTALL)


class Reach(StrEnum):
    """What a pattern covers."""

    EXACT = "exact"
    BELOW = "below"
    ANY_NAME = "any name"


@dataclass(frozen=True, slots=True)
class HostPattern:
    """One host, its true subdomains, or every name. Only a literal pattern matches an address literal."""

    reach: Reach
    host: Host | None

    def matches(self, host: Host) -> bool:
        if self.reach is Reach.EXACT:
            return host == self.host
        if host.address is not None:
            return False
        return self.reach is Reach.ANY_NAME or host.name.endswith(f".{self.host}")

    def __str__(self) -> str:
        """As a policy writes it."""
        if self.host is None:
            return "*"
        return f"*.{self.host}" if self.reach is Reach.BELOW else self.host.in_url

    @property
    def address(self) -> IPAddress | None:
        return None if self.host is None else self.host.address


def parse_pattern(text: str) -> HostPattern:
    """Parse a pattern. Raises `PolicyViolation`."""
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
    """Parse a key of `inject`: the pattern, and whether plain HTTP is allowed (an `http://` prefix)."""
    in_clear = text.startswith("http://")
    return parse_pattern(text.removeprefix("http://")), in_clear
