"""SandboxPolicy: what a guest may do. Pure data; the empty policy allows nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.core.records import dataclass, field
from warmcell.core.types import Limits, check_env, check_text


class AccessMode(StrEnum):
    """How an allowed path may be used."""

    READ_ONLY = "readOnly"
    READ_WRITE = "readWrite"


@dataclass(frozen=True, slots=True)
class AllowedPath:
    """A host path that the guest sees, at the same place unless `guest_path` puts it elsewhere."""

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
        """Where the guest finds it."""
        return self.guest_path or self.path


def _absolute(name: str, value: str) -> str:
    check_text(name, value)
    if not value.startswith("/"):
        raise PolicyViolation(f"{name} must be absolute, not {value!r}")
    if ".." in value.split("/"):
        raise PolicyViolation(f"{name} must not contain '..': {value!r}")
    return os.path.normpath("/" + value.lstrip("/"))


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
        object.__setattr__(self, "ports", tuple(self.ports))
        for port in self.ports:
            if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
                raise PolicyViolation(f"bad port {port!r} for {self.domain!r}")
        for name in ("methods", "path_prefixes"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise InvalidRequest("must be a list of texts, not one text", field=name)
            if value is not None:
                object.__setattr__(self, name, tuple(check_text(name, item) for item in value))


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """Deny-all until something is named. Contradictions are refused, so that no addition widens silently."""

    allowed_paths: tuple[AllowedPath, ...] = ()
    allow_network: bool = False
    network_rules: tuple[NetworkRule, ...] = ()
    allow_process_spawn: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None

    def __post_init__(self) -> None:
        for name, kind in (("allowed_paths", AllowedPath), ("network_rules", NetworkRule)):
            items = tuple(getattr(self, name))
            if not all(isinstance(item, kind) for item in items):
                raise InvalidRequest(f"must be {kind.__name__} objects", field=name)
            object.__setattr__(self, name, items)
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise InvalidRequest(f"must be Limits, not {type(self.limits).__name__}", field="limits")
        object.__setattr__(self, "env", check_env(self.env))
        for name in ("allow_network", "allow_process_spawn"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest("must be true or false", field=name)
        if self.allow_network and self.network_rules:
            raise PolicyViolation(
                "allow_network opens everything and would make the domain rules meaningless",
                hint="use either allow_network() or allow_domain(...)",
            )
        seen: dict[str, AllowedPath] = {}
        for allowed in self.allowed_paths:
            if seen.setdefault(allowed.target, allowed) != allowed:
                raise PolicyViolation(f"{allowed.target!r} is allowed twice, differently")

    def to_json(self) -> str:
        """The whole policy as JSON with camelCase keys; `from_json` gives back an equal object."""
        import json

        return json.dumps(_to_plain(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> SandboxPolicy:
        """Parses what `to_json` wrote. A missing key denies; an unknown one is refused: it might have denied more."""
        import json

        try:
            data = json.loads(text, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"not JSON: {error}", field="policy") from None
        return cls(
            **_plain_fields(
                cls,
                data,
                {
                    "allowed_paths": lambda items: tuple(_build(AllowedPath, item) for item in _list(items)),
                    "network_rules": lambda items: tuple(_build(NetworkRule, item) for item in _list(items)),
                    "limits": lambda item: None if item is None else _build(Limits, item),
                },
            )
        )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers differ on which of two equal keys counts; a policy must mean the same to all of them."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return dict(pairs)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(f"expected a list, not {type(value).__name__}", field="policy")
    return value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _to_plain(value: Any) -> Any:
    if isinstance(value, SandboxPolicy | AllowedPath | NetworkRule | Limits):
        return {_camel(name): _to_plain(getattr(value, name)) for name in value.__slots__}
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value


def _plain_fields(kind: Any, data: Any, convert: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InvalidRequest(f"expected an object, not {type(data).__name__}", field="policy")
    names = {_camel(name): name for name in kind.__slots__}
    unknown = sorted(set(data) - set(names))
    if unknown:
        raise InvalidRequest(f"unknown key {unknown[0]!r}", field="policy")
    return {names[key]: convert.get(names[key], lambda item: item)(value) for key, value in data.items()}


def _build(kind: Any, data: Any) -> Any:
    values = _plain_fields(kind, data, {})
    try:
        return kind(**values)
    except TypeError as error:
        raise InvalidRequest(f"bad {kind.__name__}: {error}", field="policy") from None
