"""Tokens: kept as hashes in a file, each with its scopes and quotas."""

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
from warmcell.core.light import closing_fd
from warmcell.core.records import dataclass
from warmcell.core.types import check_text
from warmcell.lifetime.held_directories import user_directory
from warmcell.policy.codec import RecordSchema, from_file, to_json

#: `run`: programs and judging. `sandbox`: lasting sandboxes. `install`: packages in them. `doctor`: what this host can
#: enforce. `metrics`: figures about the whole server. `operate`: the audit, and ending the work of any tenant.
#: `gpu`: the GPUs that the policy allows.
SCOPES = ("run", "sandbox", "install", "doctor", "metrics", "operate", "gpu")
#: Not by default: `metrics` and `operate` concern all tenants, and with `gpu` guests reach a driver in the kernel.
DEFAULT_SCOPES = ("run", "sandbox", "install", "doctor")
#: Inode, time of the last change, size.
FileIdentity = tuple[int, int, int]
_HASH_CHARACTERS = frozenset("0123456789abcdef")
_MAXIMA = {
    "runs": 1 << 16,
    "sandboxes": 1 << 16,
    "disk_mb": 1 << 24,
    "lifetime": 366 * 86_400,
    "rate": 1 << 20,
    "connections": 1 << 16,
    "gpu_runs": 1 << 16,
    "templates": 1 << 16,
}


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of one token, with scopes and quotas.

    `runs`, `sandboxes`, `connections` (requests in progress) and `gpu_runs` (runs and sandboxes with a GPU) are numbers
    at a time; `disk_mb` and `lifetime` (seconds) are per sandbox; `rate` is requests per second, 0 for no limit;
    `templates` counts the builds of E2B templates that are kept.
    """

    id: str
    name: str
    sha256: str
    created: int = 0
    scopes: Sequence[str] = DEFAULT_SCOPES
    runs: int = 64
    sandboxes: int = 32
    disk_mb: int = 1024
    lifetime: int = 86_400
    rate: int = 1000
    connections: int = 512
    gpu_runs: int = 1
    templates: int = 64

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_text("id", self.id)
        if not isinstance(self.sha256, str) or len(self.sha256) != 64 or not set(self.sha256) <= _HASH_CHARACTERS:
            raise InvalidRequest("must be 64 hexadecimal digits", field="sha256")
        unknown = [scope for scope in self.scopes if scope not in SCOPES]
        if isinstance(self.scopes, str) or unknown:
            raise InvalidRequest(f"may be {', '.join(SCOPES)}", field="scopes")
        for name, maximum in _MAXIMA.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
                raise InvalidRequest(f"must be a whole number from 0 to {maximum}", field=name)


@dataclass(frozen=True, slots=True)
class TokenFile:
    tokens: tuple[Tenant, ...] = ()


def hash_token(token: str) -> str:
    """A plain hash is enough: tokens are 256 random bits and cannot be guessed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def find_tenant(tenants: Sequence[Tenant], token: str) -> Tenant | None:
    """Find the tenant of a token. Every hash is compared in constant time."""
    presented, found = hash_token(token), None
    for tenant in tenants:
        if hmac.compare_digest(presented, tenant.sha256):
            found = tenant
    return found


def default_file() -> str:
    return os.path.join(user_directory("XDG_CONFIG_HOME", ".config"), "warmcell", "tokens.json")


def identify_file(path: str) -> FileIdentity | None:
    """None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_tokens(path: str) -> tuple[Tenant, ...]:
    """Read a token file. Raises `InvalidRequest` naming the error in it."""
    made: TokenFile = from_file(RecordSchema("tokens", TokenFile, {}, {"tokens": Tenant}, lambda _: None), path)
    return made.tokens


def add_token(path: str, name: str, **quotas: object) -> tuple[str, Tenant]:
    """Return a new token, which is not stored, and its tenant, which is."""
    token = f"wc_{secrets.token_urlsafe(32)}"
    tenant = Tenant(secrets.token_hex(8), name, hash_token(token), int(time.time()), **quotas)  # type: ignore[arg-type]
    with _edit(path) as tenants:
        if any(known.name == name for known in tenants):
            raise InvalidRequest(f"a token named {name!r} already exists", field="name", hint="revoke it first")
        tenants.append(tenant)
    return token, tenant


def remove_token(path: str, name_or_id: str) -> Tenant:
    with _edit(path) as tenants:
        found = next((tenant for tenant in tenants if name_or_id in (tenant.name, tenant.id)), None)
        if found is None:
            raise InvalidRequest(f"unknown token {name_or_id[:80]!r}", hint="see `warmcell token list`")
        tenants.remove(found)
    return found


@contextmanager
def _edit(path: str) -> Iterator[list[Tenant]]:
    """Yield the list and write it back atomically, as JSON: a server that reads meanwhile sees the old or new file."""
    if os.path.splitext(path)[1].lower() != ".json":
        raise InvalidRequest(f"cannot write {path!r}: token files are JSON", field="tokens", hint="name it .json")
    try:
        with _lock(path):
            tenants = list(read_tokens(path)) if os.path.exists(path) else []
            yield tenants
            _replace(path, to_json(TokenFile(tuple(tenants))) + "\n")
    except OSError as error:
        hint = "choose another file with --tokens FILE (on a volume, in a container with a read-only root)"
        raise InvalidRequest(f"cannot write {path!r}: {(error.strerror or str(error)).lower()}", hint=hint) from error


@contextmanager
def _lock(path: str) -> Iterator[None]:
    os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
    with closing_fd(os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(path: str, text: str) -> None:
    draft = f"{path}.new"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
