"""The npm registries that this host is configured for, and network rules for exactly those."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from warmcell.core.errors import InvalidRequest
from warmcell.net.rules.package_index import rule_for_url
from warmcell.policy.model import NetworkRule


@dataclass(frozen=True, slots=True)
class NpmRegistry:
    """`scopes` maps `@scope` to its registry; `certificate` is a CA file."""

    url: str
    scopes: tuple[tuple[str, str], ...] = ()
    certificate: str | None = None
    is_strict: bool = True
    #: Authentication lines of the user's .npmrc: `//host/:_authToken=...`.
    credentials: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *(url for _, url in self.scopes))

    def rules(self) -> tuple[NetworkRule, ...]:
        """Rules for the registries, each at its own port."""
        return tuple(dict.fromkeys(rule_for_url(url, "npm's registry", "registry") for url in self.urls))

    def settings(self) -> str:
        """The .npmrc for npm in the cage."""
        lines = [f"registry={self.url}", *(f"{scope}:registry={url}" for scope, url in self.scopes)]
        lines += [f"cafile={self.certificate}"] if self.certificate else []
        lines += [f"strict-ssl={str(self.is_strict).lower()}", *self.credentials]
        return "\n".join(lines) + "\n"


def parse_npm_config(text: str) -> NpmRegistry:
    """Parse `npm config ls --long --json`. Credentials, which it omits, are read from the user's .npmrc."""
    try:
        settings = json.loads(text)
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
        raise InvalidRequest("could not read the registry from npm's configuration", field="registry") from None


def _credentials(path: str | None, hosts: set[str]) -> tuple[str, ...]:
    """The credentials for these hosts only."""
    try:
        with open(path or os.devnull, encoding="utf-8") as file:
            lines = [os.path.expandvars(line.strip()) for line in file]
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(line for line in lines if line.startswith("//") and line[2:].partition("/")[0] in hosts)
