"""The server's settings, checked before it listens."""

from __future__ import annotations

import ipaddress
import socket

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass
from warmcell.core.types import MIB

#: A shorter token could be guessed by trying.
MIN_TOKEN_LENGTH = 16
#: The id of a sandbox has two hexadecimal digits for its worker.
MAX_WORKERS = 256
#: After `drain_timeout`: for the responses of runs that were ended then.
LAST_RESPONSE_SECONDS = 5.0
#: After that: for removing sandboxes. Then the process exits, which ends the cages.
CLEANUP_SECONDS = 10.0
#: With `--state`, before that: for the variables of sessions.
SAVE_SECONDS = 30.0
#: With a key too: for the files, which are copied. What is not copied by then keeps its previous copy.
SAVE_FILES_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`token`: a single token; `tokens`: a token file. With neither, every client that reaches loopback is allowed."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    tokens: str | None = None
    policy: str | None = None
    #: The guests' interpreter, with the packages installed for it; None: the host's own, without packages.
    python: str | None = None
    #: The directory of the image store; None: the user's own store.
    images: str | None = None
    max_body: int = 16 * MIB
    max_timeout: float = 300.0
    max_connections: int = 1024
    max_waiting: int = 1024
    #: How long a run may wait for a slot before the server answers 503.
    queue_timeout: float = 30.0
    #: How long work in progress may continue after SIGTERM.
    drain_timeout: float = 30.0
    #: The one-time code of the browser that `--open` started; see `sign_in`.
    code: str | None = None
    #: Processes that handle requests; 1: this one, without a front.
    workers: int = 1
    #: The URL under which browsers reach the server through a proxy, and the addresses of proxies to believe.
    public_url: str | None = None
    trusted_proxies: str = ""
    tls_cert: str | None = None
    tls_key: str | None = None
    #: A file for the audit, and one for usage figures (None: in memory).
    audit: str | None = None
    usage: str | None = None
    #: Whether metrics have counters with the tenant as a label.
    metrics_by_tenant: bool = False
    log_level: str = "warning"
    log_format: str = "text"
    #: A directory for what the next server restores; None: nothing outlasts this one.
    state: str | None = None
    #: 64 hexadecimal digits that encrypt everything in it but volumes, which need `plain_volumes` then.
    state_key: str | None = None
    plain_volumes: bool = False
    #: Concurrent sandboxes of the one tenant without `tokens`. In a token file each token has its own limit.
    sandboxes: int = 32
    #: The address of a Ray cluster on whose nodes everything runs, as in `ray.init`; None: on this host.
    ray: str | None = None
    #: Maximum number of E2B sandboxes made ahead; None: depends on free memory.
    spares: int | None = None

    @property
    def is_open(self) -> bool:
        return self.token is None and self.tokens is None

    @property
    def shutdown_seconds(self) -> float:
        """The longest time from SIGTERM to the exit of a process."""
        saving = 0.0 if self.state is None else SAVE_SECONDS
        saving += 0.0 if self.state_key is None else SAVE_FILES_SECONDS
        return self.drain_timeout + LAST_RESPONSE_SECONDS + saving + CLEANUP_SECONDS


_DEFAULTS = Settings()


def check_exposure(settings: Settings) -> None:
    """Refuse to listen on an address that other machines can reach without requiring a token."""
    if settings.token is not None and settings.tokens is not None:
        raise InvalidRequest("--token and --tokens exclude each other", hint="keep one of them")
    if is_loopback(settings.host):
        return
    if settings.is_open:
        raise InvalidRequest(
            f"other machines can reach {settings.host!r}, and no token is required",
            hint="give --token or --tokens FILE (see `warmcell token new`), or listen on 127.0.0.1",
        )
    if settings.token is not None and len(settings.token) < MIN_TOKEN_LENGTH:
        hint = "make one with `warmcell token new`"
        raise InvalidRequest(f"a token of fewer than {MIN_TOKEN_LENGTH} characters can be guessed", hint=hint)


#: Settings that a cluster does not have, and why.
_NOT_ON_A_CLUSTER = {
    "workers": "each node has a process of its own",
    "state": "sandboxes live on their nodes, and are lost with them",
    "audit": "runs are on the nodes, which would each write a file of their own",
    "usage": "runs are on the nodes, which would each write a file of their own",
}


def check_cluster_settings(settings: Settings) -> None:
    """Refuse what does not work with `--ray`."""
    for name, reason in _NOT_ON_A_CLUSTER.items() if settings.ray is not None else ():
        if getattr(settings, name) != getattr(_DEFAULTS, name):
            raise InvalidRequest(f"--{name} does not work with --ray: {reason}", hint="leave one of them out")


def is_loopback(host: str) -> bool:
    """Whether every address of the name is a loopback address."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InvalidRequest(f"{host!r} is not an address of this machine", field="host") from None
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
