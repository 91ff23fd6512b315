"""SandboxPolicy: what a guest may do. Pure data; the empty policy allows nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.core.records import dataclass, field
from warmcell.core.types import Limits, check_env, check_text
from warmcell.policy.places import check_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from warmcell.policy.codec import RecordSchema


class AccessMode(StrEnum):
    """How an allowed path may be used."""

    READ_ONLY = "readOnly"
    READ_WRITE = "readWrite"


@dataclass(frozen=True, slots=True)
class AllowedPath:
    """A host path that the guest sees, at the same path unless `guest_path` is given."""

    path: str
    mode: AccessMode = AccessMode.READ_ONLY
    guest_path: str | None = None

    def __post_init__(self) -> None:
        path = os.fspath(self.path) if isinstance(self.path, os.PathLike) else self.path
        object.__setattr__(self, "path", _absolute("path", path))
        try:
            object.__setattr__(self, "mode", AccessMode(self.mode))
        except ValueError:
            raise InvalidRequest(f"must be one of {', '.join(AccessMode)}, not {self.mode!r}", field="mode") from None
        if self.guest_path is not None:
            object.__setattr__(self, "guest_path", _absolute("guest_path", self.guest_path))

    @property
    def target(self) -> str:
        """The guest's path."""
        return self.guest_path or self.path


class OwnPath(AllowedPath):
    """A directory of one sandbox alone. All that it contains counts as disk use, whichever run has written it."""

    __slots__ = ()


def _absolute(name: str, value: str) -> str:
    check_text(name, _without_undecoded(value))
    if not value.startswith("/"):
        raise PolicyViolation(f"{name} must be absolute, not {value!r}")
    if ".." in value.split("/"):
        raise PolicyViolation(f"{name} must not contain '..': {value!r}")
    return os.path.normpath("/" + value.lstrip("/"))


#: The bytes that `os.fsdecode` cannot decode.
_UNDECODED = dict.fromkeys(range(0xDC80, 0xDD00))


def _without_undecoded(value: object) -> object:
    """Names of files need not be UTF-8: what is protected in a directory may have names that a guest chose."""
    return value.translate(_UNDECODED) if isinstance(value, str) and not value.isascii() else value


_DOMAIN = r"(\*\.)?[^\s/@\\:*?#%]+|\[[0-9a-fA-F:.]+\]|[0-9a-fA-F:]+"


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """A destination that the guest may reach: an exact name, `*.example.com` (true subdomains) or an IP literal."""

    domain: str
    ports: tuple[int, ...] = (80, 443)
    methods: tuple[str, ...] | None = None
    path_prefixes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_text("domain", self.domain)
        import re

        if not re.fullmatch(_DOMAIN, self.domain):
            raise PolicyViolation(f"{self.domain!r} is not a domain, '*.domain' or IP address")
        object.__setattr__(self, "ports", as_tuple("ports", self.ports))
        if not self.ports:
            raise PolicyViolation(
                f"no port of {self.domain!r} is allowed", hint="name ports, or leave them out for 80 and 443"
            )
        for port in self.ports:
            if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
                raise PolicyViolation(f"bad port {port!r} for {self.domain!r}")
        for name in ("methods", "path_prefixes"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(check_text(name, item) for item in as_tuple(name, value)))

    def as_text(self) -> str:
        """The name, with its ports unless they are the default ones."""
        ports = "" if self.ports == (80, 443) else ":" + ",".join(map(str, self.ports))
        return f"{self.domain}{ports}"


def as_tuple(name: str, value: object) -> tuple[Any, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidRequest(f"must be a list, not {type(value).__name__}", field=name)
    return tuple(value)


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """Denies everything that it does not allow. Contradictory fields are refused, so that none widens it silently."""

    allowed_paths: tuple[AllowedPath, ...] = ()
    allow_network: bool = False
    network_rules: tuple[NetworkRule, ...] = ()
    allow_process_spawn: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    #: "all", or the numbers of the devices. None: no GPU.
    gpus: str | tuple[int, ...] | None = None
    #: Whether programs may trace each other (`ptrace`), as gdb and strace do. Needs `allow_process_spawn`.
    allow_tracing: bool = False

    def __post_init__(self) -> None:
        if self.gpus is not None:
            from warmcell.policy.gpu import check_gpus

            object.__setattr__(self, "gpus", check_gpus(self.gpus))
        for name, kind in (("allowed_paths", AllowedPath), ("network_rules", NetworkRule)):
            items = as_tuple(name, getattr(self, name))
            if not all(isinstance(item, kind) for item in items):
                raise InvalidRequest(f"must be {kind.__name__} objects", field=name)
            object.__setattr__(self, name, items)
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise InvalidRequest(f"must be Limits, not {type(self.limits).__name__}", field="limits")
        object.__setattr__(self, "env", check_env(self.env))
        for name in ("allow_network", "allow_process_spawn", "allow_tracing"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest("must be true or false", field=name)
        if self.allow_tracing and not self.allow_process_spawn:
            raise PolicyViolation(
                "allow_tracing has no effect without new processes", hint="add allow_process_spawn() to the policy"
            )
        if self.allow_network and self.network_rules:
            raise PolicyViolation(
                "allow_network opens everything and would make the domain rules meaningless",
                hint="use either allow_network() or allow_domain(...), not both",
            )
        object.__setattr__(self, "allowed_paths", _merge(self.allowed_paths))

    def to_json(self) -> str:
        """The whole policy as JSON with camelCase keys, for `from_json`."""
        from warmcell.policy.codec import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> SandboxPolicy:
        """Parse the output of `to_json`. A missing key denies; an unknown key is refused: it might have denied more."""
        from warmcell.policy.codec import from_json

        policy: SandboxPolicy = from_json(_schema(), text)
        return policy

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> SandboxPolicy:
        """Read a `.toml` or `.json` file, with the same keys. Errors name the field and the line."""
        from warmcell.policy.codec import from_file

        policy: SandboxPolicy = from_file(_schema(), path)
        return policy


def _schema() -> RecordSchema:
    from warmcell.policy.codec import RecordSchema

    lists = {"allowed_paths": AllowedPath, "network_rules": NetworkRule}
    return RecordSchema("policy", SandboxPolicy, {"limits": Limits}, lists, check_places)


def check_places(policy: SandboxPolicy) -> None:
    """Refuse a policy that uses a path reserved for the cage."""
    for allowed in policy.allowed_paths:
        check_place(allowed.target)


def _merge(paths: tuple[AllowedPath, ...]) -> tuple[AllowedPath, ...]:
    """Merge to one entry per target: read-write wins over read-only; two paths at one target are refused."""
    merged: dict[str, AllowedPath] = {}
    for allowed in paths:
        known = merged.setdefault(allowed.target, allowed)
        if known.path != allowed.path:
            raise PolicyViolation(
                f"both {known.path!r} and {allowed.path!r} are to be shown at {allowed.target!r}",
                hint="keep one of the two, or show one of them elsewhere",
            )
        if allowed.mode is AccessMode.READ_WRITE:
            merged[allowed.target] = allowed
    return tuple(merged.values())
