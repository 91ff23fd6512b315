"""What the server was told when it was started, checked before anything listens."""

from __future__ import annotations

import ipaddress
import socket

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass
from warmcell.core.types import MIB

#: A token that somebody made up must at least not be guessed by trying.
SHORTEST_TOKEN = 16
#: An id of a sandbox has two digits for its worker.
MOST_WORKERS = 256


@dataclass(frozen=True, slots=True)
class Settings:
    """`token`: one for everybody; `tokens`: a file of them; neither: whoever reaches loopback may use it."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    tokens: str | None = None
    policy: str | None = None
    #: The interpreter that guests get, with what is installed beside it; None: the host's own, bare.
    python: str | None = None
    max_body: int = 16 * MIB
    max_timeout: float = 300.0
    max_connections: int = 1024
    max_waiting: int = 1024
    #: How long a run may wait for its place before its client is asked to come again.
    queue_timeout: float = 30.0
    #: How long what is under way may go on after SIGTERM.
    drain_timeout: float = 30.0
    #: What the browser that the command opened exchanges for the token; see `sign_in`.
    code: str | None = None
    #: Processes that carry out requests; 1: this one, and there is no front.
    workers: int = 1
    #: E2B sandboxes that are made ahead at most; None: by what the machine has left.
    spares: int | None = None

    @property
    def is_open(self) -> bool:
        return self.token is None and self.tokens is None


def check_reach(settings: Settings) -> None:
    """Refuses to be reachable from elsewhere without a token."""
    if settings.token is not None and settings.tokens is not None:
        raise InvalidRequest("--token and --tokens exclude each other", hint="keep one of them")
    if is_loopback(settings.host):
        return
    if settings.is_open:
        raise InvalidRequest(
            f"{settings.host!r} can be reached from other machines, and nobody would be asked for a token",
            hint="give --token or --tokens FILE (see `warmcell token new`), or stay on 127.0.0.1",
        )
    if settings.token is not None and len(settings.token) < SHORTEST_TOKEN:
        hint = "make one with `warmcell token new`"
        raise InvalidRequest(f"a token of fewer than {SHORTEST_TOKEN} characters can be guessed", hint=hint)


def is_loopback(host: str) -> bool:
    """Whether every address that the name stands for is one of this machine alone."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InvalidRequest(f"{host!r} is no address of this machine", field="host") from None
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
