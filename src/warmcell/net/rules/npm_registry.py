"""Where npm's packages come from on this host, as npm is configured, and the network rules for that alone."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from warmcell.core.errors import InvalidRequest
from warmcell.policy.model import NetworkRule

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class NpmRegistry:
    """`scopes` are registries of their own for `@scope/...`; `certificate` is a file with the roots to trust."""

    url: str
    scopes: tuple[tuple[str, str], ...] = ()
    certificate: str | None = None
    is_strict: bool = True
    #: Lines of the user's file that say who asks: `//host/:_authToken=...`.
    credentials: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *(url for _, url in self.scopes))

    def rules(self) -> tuple[NetworkRule, ...]:
        """The packages-only preset: the registries, each at its own port."""
        rules: dict[NetworkRule, None] = {}
        for url in self.urls:
            parts = urlsplit(url)
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
            if not parts.hostname or not port:
                raise InvalidRequest(f"npm's registry {url[:40]!r} is not on the web", field="registry")
            rules[NetworkRule(parts.hostname, (port,))] = None
        return tuple(rules)

    def settings(self) -> str:
        """For npm in the cage, as its configuration file."""
        lines = [f"registry={self.url}", *(f"{scope}:registry={url}" for scope, url in self.scopes)]
        lines += [f"cafile={self.certificate}"] if self.certificate else []
        lines += [f"strict-ssl={str(self.is_strict).lower()}", *self.credentials]
        return "\n".join(lines) + "\n"


def registry_from(said: str) -> NpmRegistry:
    """From what `npm config ls --long --json` answers; credentials, which that leaves out, are read where npm does."""
    try:
        settings = json.loads(said)
        scopes = {name: url for name, url in settings.items() if name.startswith("@") and name.endswith(":registry")}
        hosts = {urlsplit(url).netloc for url in (settings["registry"], *scopes.values())}
        return NpmRegistry(
            url=settings["registry"],
            scopes=tuple((name.removesuffix(":registry"), url) for name, url in scopes.items()),
            certificate=os.path.realpath(settings["cafile"]) if settings.get("cafile") else None,
            is_strict=settings.get("strict-ssl") is not False,
            credentials=_credentials(settings.get("userconfig"), hosts),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidRequest("npm does not say where its packages come from", field="registry") from None


def _credentials(path: str | None, hosts: set[str]) -> tuple[str, ...]:
    """For these hosts alone."""
    try:
        with open(path or os.devnull, encoding="utf-8") as file:
            lines = [os.path.expandvars(line.strip()) for line in file]
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(line for line in lines if line.startswith("//") and line[2:].partition("/")[0] in hosts)
