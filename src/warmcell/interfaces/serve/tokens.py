"""Who may use the server: tokens, kept as hashes in a file, with what each may do and how much of it."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass
from warmcell.core.types import check_text
from warmcell.policy.codec import Form, from_file, to_json

#: `run`: programs and judging. `sandbox`: sandboxes that stay. `doctor`: what this host can enforce.
#: `install`: packages for them. `metrics`: how much of it there is.
SCOPES = ("run", "sandbox", "install", "doctor", "metrics")
_HASH_CHARACTERS = frozenset("0123456789abcdef")
_LARGEST = {
    "runs": 1 << 16,
    "sandboxes": 1 << 16,
    "disk_mb": 1 << 24,
    "lifetime": 366 * 86_400,
    "rate": 1 << 20,
    "connections": 1 << 16,
}


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whoever holds one token, and what they may use.

    `runs` and `sandboxes`: so many at a time; `disk_mb`: of each sandbox; `lifetime`: seconds of each sandbox; `rate`:
    requests in a second, where 0 is as many as there are; `connections`: requests under way at a time.
    """

    id: str
    name: str
    sha256: str
    created: int = 0
    scopes: Sequence[str] = SCOPES
    runs: int = 64
    sandboxes: int = 32
    disk_mb: int = 1024
    lifetime: int = 86_400
    rate: int = 1000
    connections: int = 512

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_text("id", self.id)
        if not isinstance(self.sha256, str) or len(self.sha256) != 64 or not set(self.sha256) <= _HASH_CHARACTERS:
            raise InvalidRequest("must be 64 hexadecimal digits", field="sha256")
        unknown = [scope for scope in self.scopes if scope not in SCOPES]
        if isinstance(self.scopes, str) or unknown:
            raise InvalidRequest(f"may be {', '.join(SCOPES)}", field="scopes")
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
                raise InvalidRequest(f"must be a whole number from 0 to {largest}", field=name)


@dataclass(frozen=True, slots=True)
class TokenFile:
    tokens: tuple[Tenant, ...] = ()


def hashed(token: str) -> str:
    """Tokens are 256 random bits: a plain hash of one cannot be reversed by guessing."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def find_tenant(tenants: Sequence[Tenant], token: str) -> Tenant | None:
    """Whose token it is. Every hash is compared whole, so that time tells nothing about any of them."""
    presented, found = hashed(token), None
    for tenant in tenants:
        if hmac.compare_digest(presented, tenant.sha256):
            found = tenant
    return found


def default_file() -> str:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "warmcell", "tokens.json")


def read_tokens(path: str) -> tuple[Tenant, ...]:
    """The tenants in a file, or `InvalidRequest` that names what is wrong with it."""
    made: TokenFile = from_file(Form("tokens", TokenFile, {}, {"tokens": Tenant}, lambda _: None), path)
    return made.tokens


def add_token(path: str, name: str, **quotas: object) -> tuple[str, Tenant]:
    """A new token, which is told once and never kept, and its tenant, which is."""
    token = f"wc_{secrets.token_urlsafe(32)}"
    tenant = Tenant(secrets.token_hex(8), name, hashed(token), int(time.time()), **quotas)  # type: ignore[arg-type]
    with _changing(path) as tenants:
        if any(known.name == name for known in tenants):
            raise InvalidRequest(f"there is a token called {name!r} already", field="name", hint="revoke it first")
        tenants.append(tenant)
    return token, tenant


def remove_token(path: str, name_or_id: str) -> Tenant:
    with _changing(path) as tenants:
        found = next((tenant for tenant in tenants if name_or_id in (tenant.name, tenant.id)), None)
        if found is None:
            raise InvalidRequest(f"no token is called {name_or_id[:80]!r}", hint="see `warmcell token list`")
        tenants.remove(found)
    return found


@contextmanager
def _changing(path: str) -> Iterator[list[Tenant]]:
    """The list, written back whole when the block ends: a server that reads meanwhile sees the old file or the new."""
    try:
        with _locked(path):
            tenants = list(read_tokens(path)) if os.path.exists(path) else []
            yield tenants
            _replace(path, to_json(TokenFile(tuple(tenants))) + "\n")
    except OSError as error:
        hint = "say with --tokens FILE where it may be kept (in a container with a read-only root: on a volume)"
        raise InvalidRequest(f"cannot write {path!r}: {(error.strerror or str(error)).lower()}", hint=hint) from error


@contextmanager
def _locked(path: str) -> Iterator[None]:
    os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
    lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: str, text: str) -> None:
    draft = f"{path}.new"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
