"""The package indexes that this host's pip and npm are configured for, and network rules for exactly those."""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from warmcell.core.errors import InvalidRequest
from warmcell.policy.model import NetworkRule

_DEFAULT_PORTS = {"http": 80, "https": 443}


def rule_for_url(url: str, what: str, field: str) -> NetworkRule:
    """A rule for the URL's host at its own port. `what` and `field` are for the error."""
    parts = urlsplit(url)
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    if not parts.hostname or not port:
        raise InvalidRequest(f"{what} {parts.hostname or url[:40]!r} is not an http or https URL", field=field)
    return NetworkRule(parts.hostname, (port,))


@dataclass(frozen=True, slots=True)
class PublicIndex:
    """pip's default index, the host that serves its files, and the interpreter's prefix, which has a pip.conf too."""

    url: str
    files_host: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """`directories` are local package directories; `certificate` is a CA file."""

    public: PublicIndex
    url: str
    more_urls: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    certificate: str | None = None
    #: pip's `no-index`: only the directories are used.
    is_offline: bool = False
    urls: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "urls", () if self.is_offline else (self.url, *self.more_urls))

    def rules(self) -> tuple[NetworkRule, ...]:
        """Rules for the indexes and their file hosts, each at its own port."""
        rules: dict[NetworkRule, None] = {}
        for url in self.urls:
            rule = rule_for_url(url, "pip's index", "index-url")
            rules[rule] = None
            if rule.domain == urlsplit(self.public.url).hostname:
                rules[NetworkRule(self.public.files_host, rule.ports)] = None
        return tuple(rules)

    def variables(self) -> dict[str, str]:
        """Environment variables for pip in the cage."""
        variables = {
            "PIP_INDEX_URL": self.url,
            "PIP_EXTRA_INDEX_URL": " ".join(self.more_urls),
            "PIP_TRUSTED_HOST": " ".join(self.trusted_hosts),
            "PIP_CERT": self.certificate or "",
            "PIP_NO_INDEX": "1" if self.is_offline else "",
            "PIP_CONFIG_FILE": os.devnull,
        }
        return {name: value for name, value in variables.items() if value}


def configured_index(public: PublicIndex, environment: Mapping[str, str] | None = None) -> PackageIndex:
    """Read pip's configuration: its files, then the environment, which takes precedence."""
    settings = _settings(public, os.environ if environment is None else environment)
    links = settings.get("find-links", "").split()
    return PackageIndex(
        public=public,
        url=settings.get("index-url", "").strip() or public.url,
        more_urls=(*settings.get("extra-index-url", "").split(), *(link for link in links if "://" in link)),
        directories=tuple(os.path.realpath(link) for link in links if "://" not in link and os.path.isdir(link)),
        trusted_hosts=tuple(settings.get("trusted-host", "").split()),
        certificate=settings.get("cert", "").strip() or None,
        is_offline=settings.get("no-index", "").strip().lower() in ("1", "y", "yes", "t", "true", "on"),
    )


def _settings(public: PublicIndex, environment: Mapping[str, str]) -> dict[str, str]:
    """As pip combines them: `[install]` of any file overrides `[global]`, and what is empty counts as not set."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in _files(public, environment):
        parser = _read_file(path)
        for section, found in sections.items():
            if parser.has_section(section):
                found.update((_option(name), value) for name, value in parser[section].items())
    variables = {_option(name[4:]): value for name, value in environment.items() if name.startswith("PIP_")}
    layers = (sections["global"], sections["install"], variables)
    return {name: value for layer in layers for name, value in layer.items() if value}


def _option(name: str) -> str:
    """pip's name for it: `index_url`, `INDEX_URL` and `--index-url` are one option."""
    return name.lower().replace("_", "-").removeprefix("--")


def _files(public: PublicIndex, environment: Mapping[str, str]) -> Iterator[str]:
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = environment.get("HOME") or os.path.expanduser("~")
    config = environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    for directory in (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
        yield os.path.join(directory, "pip/pip.conf")
    yield "/etc/pip.conf"
    if not (named and os.path.exists(named)):  # a named file replaces the user's
        yield from (os.path.join(home, ".pip/pip.conf"), os.path.join(config, "pip/pip.conf"))
    if public.prefix:
        yield os.path.join(public.prefix, "pip.conf")
    if named:
        yield named


def _read_file(path: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return configparser.RawConfigParser()  # pip reports a broken file itself
    return parser


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
