"""Where packages come from on this host, as pip is configured, and the network rules for that and nothing else."""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from warmcell.core.errors import InvalidRequest
from warmcell.policy.model import NetworkRule

_DEFAULT_PORTS = {"http": 80, "https": 443}
_LISTS = ("extra-index-url", "find-links", "trusted-host")


@dataclass(frozen=True, slots=True)
class PublicIndex:
    """The one that pip uses unless told otherwise, in its own words, and the host that keeps the files it lists."""

    url: str
    files_host: str


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """`directories` are local ones that hold packages; `certificate` is a file with the roots to trust."""

    public: PublicIndex
    url: str
    more_urls: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    certificate: str | None = None
    #: What is configured as `no-index`: the directories alone.
    is_offline: bool = False
    urls: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "urls", () if self.is_offline else (self.url, *self.more_urls))

    def rules(self) -> tuple[NetworkRule, ...]:
        """The packages-only preset: the index and where its files are, each at its own port."""
        rules: dict[NetworkRule, None] = {}
        for url in self.urls:
            parts = urlsplit(url)
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
            if not parts.hostname or not port:
                raise InvalidRequest(f"pip's index {parts.hostname or url[:40]!r} is not on the web", field="index-url")
            is_public = parts.hostname == urlsplit(self.public.url).hostname
            for host in (parts.hostname, *([self.public.files_host] if is_public else ())):
                rules[NetworkRule(host, (port,))] = None
        return tuple(rules)

    def variables(self) -> dict[str, str]:
        """For pip in the cage."""
        said = {"PIP_INDEX_URL": self.url, "PIP_EXTRA_INDEX_URL": " ".join(self.more_urls)}
        said |= {"PIP_TRUSTED_HOST": " ".join(self.trusted_hosts), "PIP_CERT": self.certificate or ""}
        said |= {"PIP_NO_INDEX": "1" if self.is_offline else "", "PIP_CONFIG_FILE": os.devnull}
        return {name: value for name, value in said.items() if value}


def configured_index(public: PublicIndex, environment: Mapping[str, str] | None = None) -> PackageIndex:
    """As pip would find it: its files, then the environment, which has the last word."""
    environment = os.environ if environment is None else environment
    said: dict[str, str] = {}
    for path in _files(environment):
        said |= _settings_of(path)
    for name in ("index-url", *_LISTS, "cert", "no-index"):
        value = environment.get("PIP_" + name.upper().replace("-", "_"))
        said |= {} if value is None else {name: value}
    links = said.get("find-links", "").split()
    return PackageIndex(
        public=public,
        url=said.get("index-url", "").strip() or public.url,
        more_urls=(*said.get("extra-index-url", "").split(), *(link for link in links if "://" in link)),
        directories=tuple(os.path.realpath(link) for link in links if "://" not in link and os.path.isdir(link)),
        trusted_hosts=tuple(said.get("trusted-host", "").split()),
        certificate=said.get("cert", "").strip() or None,
        is_offline=said.get("no-index", "").strip().lower() in ("1", "true", "yes", "on"),
    )


def _files(environment: Mapping[str, str]) -> Iterator[str]:
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = environment.get("HOME") or os.path.expanduser("~")
    config = environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    yield from ("/etc/pip.conf", os.path.join(home, ".pip/pip.conf"), os.path.join(config, "pip/pip.conf"))
    if named:
        yield named


def _settings_of(path: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return {}  # pip itself would complain, to whoever uses it
    return {
        name: value
        for part in ("global", "install")
        if parser.has_section(part)
        for name, value in parser[part].items()
    }
