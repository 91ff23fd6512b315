"""`sandbox.install(..., manager="npm")`: npm packages for one sandbox, resolved and unpacked in cages of their own.

No code of a package runs: npm runs with `--ignore-scripts`, and the cages refuse new processes, so that git does not
start for a dependency that is a repository. The first cage asks the registry, without a cache, for the versions and
their hashes. The second one takes the packages from the cache or the registry and checks those hashes, so a manipulated
cache is detected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from warmcell.core.errors import BackendUnavailable, ProvisionFailed
from warmcell.core.light import on_error
from warmcell.core.records import dataclass
from warmcell.enforcers.host import find_program, query_tool
from warmcell.languages.javascript import find_node, runs_javascript
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr
from warmcell.lifetime.threads import in_thread
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.sandbox.local.guest_config import NPM_PLACE
from warmcell.sandbox.local.pip_packages import Installer, Packages, cache_directory, check_names, prune_cache
from warmcell.workspace.private_directory import PrivateDirectory

if TYPE_CHECKING:
    from warmcell.net.rules.package_index import NpmRegistry

_CACHE, _TARGET, _SETTINGS = "/cache", "/target", "/settings"
#: `name` or `@scope/name`, with a version, a range or a tag; no URL, path, alias or option.
_PART = r"[a-z0-9][a-z0-9._-]*"
_NAME = re.compile(rf"(?:@{_PART}/)?{_PART}(?:@[\w^~<>=*][\w.^~<>=*+| -]*)?", re.ASCII | re.IGNORECASE)
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--no-update-notifier", "--loglevel=error")
_ALWAYS = ("--logs-max=0", "--userconfig", f"{_SETTINGS}/npmrc", "--globalconfig", os.devnull, "--prefix", _TARGET)
#: Lines of npm's error output that are not the reason.
_NOISE = re.compile(r"code |A complete log|\s*$|This is probably|404\s*$|errno|syscall|path ")
_HINT = "check the name and the version; only packages of a registry are installed"


@dataclass(frozen=True, slots=True)
class Npm:
    """npm of this host: its Node and its script."""

    node: str
    program: str

    @property
    def visible_paths(self) -> tuple[str, ...]:
        """The paths that the cage needs besides /usr: the package that contains npm."""
        return beside_usr([self.node, os.path.dirname(os.path.dirname(self.program))])


async def install_npm(installer: Installer, names: Sequence[str], before: Packages | None) -> Packages:
    """The packages in `before` plus these. `before` is not changed."""
    names = check_npm_names(names)
    npm = await in_thread(lambda: find_npm(installer))
    registry = await in_thread(lambda: configured_registry(npm))
    cache = await in_thread(lambda: cache_directory("npm", registry.urls))
    packages = await in_thread(lambda: Packages(before), discard=lambda made: made.close())
    async with on_error(lambda: in_thread(packages.close)):  # an error may keep the last reference
        settings = await in_thread(lambda: PrivateDirectory("packages"), discard=PrivateDirectory.close)
        try:
            await in_thread(lambda: _prepare(settings.path, registry, packages))
            await _resolve(installer, npm, registry, names, settings.path, packages)
            await _unpack(installer, npm, registry, cache, settings.path, packages)
            await in_thread(lambda: installer.check_size(packages))
        finally:
            await in_thread(settings.close)
            await in_thread(lambda: prune_cache(cache))  # a failed install has filled it too
    return packages


def _prepare(settings: str, registry: NpmRegistry, packages: Packages) -> None:
    with open(os.path.join(settings, "npmrc"), "w", encoding="utf-8") as file:
        file.write(registry.settings())
    os.makedirs(os.path.join(packages.path, NPM_PLACE), exist_ok=True)


async def _resolve(
    installer: Installer, npm: Npm, registry: NpmRegistry, names: Sequence[str], settings: str, packages: Packages
) -> None:
    words = ["install", "--package-lock-only", "--cache", "/tmp/npm", *_QUIET, *_ALWAYS, "--", *names]
    await _npm(installer, npm, registry, _paths(npm, registry, settings, packages), words, f"find {', '.join(names)}")


async def _unpack(
    installer: Installer, npm: Npm, registry: NpmRegistry, cache: str, settings: str, packages: Packages
) -> None:
    paths = [AllowedPath(cache, AccessMode.READ_WRITE, _CACHE), *_paths(npm, registry, settings, packages)]
    words = ["ci", "--cache", _CACHE, "--prefer-offline", *_QUIET, *_ALWAYS]
    await _npm(installer, npm, registry, paths, words, "fetch and unpack the packages")


def _paths(npm: Npm, registry: NpmRegistry, settings: str, packages: Packages) -> list[AllowedPath]:
    readable = [*npm.visible_paths, *(beside_usr([registry.certificate]) if registry.certificate else ())]
    return [
        AllowedPath(os.path.join(packages.path, NPM_PLACE), AccessMode.READ_WRITE, _TARGET),
        AllowedPath(settings, AccessMode.READ_ONLY, _SETTINGS),
        *(AllowedPath(path, AccessMode.READ_ONLY) for path in readable if not path.startswith("/etc/ssl/")),
    ]


async def _npm(
    installer: Installer, npm: Npm, registry: NpmRegistry, paths: list[AllowedPath], words: list[str], what: str
) -> None:
    from warmcell.net.rules.fetch_policy import FetchPolicy

    # The host's user configured the registry, whose address may well be private.
    egress = FetchPolicy(rules=registry.rules(), deny_private_ips=False)
    policy = SandboxPolicy(tuple(paths), allow_process_spawn=False)
    # The loopback of the cage is not the host's: a registry there is reached through the proxy too.
    env = {"no_proxy": "", "NO_PROXY": "", "npm_config_noproxy": ""}
    result = await installer.run_in_cage(policy, [npm.node, npm.program, *words], env, egress)
    if not result.ok:
        raise installer.make_error(result, f"npm could not {what}", _reasons(result.stderr), _HINT)


def _reasons(stderr: str) -> list[str]:
    lines = [re.sub(r"^npm (?:error|ERR!) ?", "", line) for line in stderr.splitlines() if line.startswith("npm ")]
    return [line.strip() for line in lines if not _NOISE.match(line)][:1]


def check_npm_names(names: Sequence[str]) -> tuple[str, ...]:
    return check_names(names, _NAME, "'lodash', 'lodash@^4.17.0' or '@types/node@20'")


def find_npm(installer: Installer) -> Npm:
    """The npm that came with the sandbox's Node, else the first on PATH."""
    node = find_node(installer.config, runs_javascript, "npm needs Node.js", remedy=REMEDIES["javascript"]).path
    beside = os.path.join(os.path.dirname(os.path.dirname(node)), "lib/node_modules/npm/bin/npm-cli.js")
    for path in (beside, find_program("npm")):
        if path and os.path.isfile(path) and os.path.realpath(path).endswith(".js"):
            return Npm(node, os.path.realpath(path))
    raise ProvisionFailed("packages", "npm is not installed on this host", "install the npm of its Node.js")


def configured_registry(npm: Npm) -> NpmRegistry:
    """As npm itself is configured, by its files and the environment."""
    from warmcell.net.rules.package_index import parse_npm_config

    try:
        return parse_npm_config(query_tool([npm.node, npm.program, "config", "ls", "--long", "--json"]))
    except BackendUnavailable as error:
        raise ProvisionFailed("packages", f"npm does not work: {error.message}", "try `npm config ls`") from None
