"""`sandbox.install(..., manager="npm")`: Node's packages for one sandbox, found and unpacked in cages of their own.

No code of a package runs on the way: npm is told to ignore scripts. The first cage asks the registry itself, with
nothing kept, which versions there are and what their hashes must be. The second one takes them from what is kept or
from the registry, and whatever has not the hash that the first was told is not taken: nobody who wrote there matters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from warmcell.core.errors import BackendUnavailable, InvalidRequest, ProvisionFailed
from warmcell.core.records import dataclass
from warmcell.core.types import check_text
from warmcell.enforcers.host import ask, find_program
from warmcell.languages.javascript import find_node, runs_javascript
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr
from warmcell.lifetime.threads import in_thread
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.sandbox.guest_config import NPM_PLACE
from warmcell.sandbox.packages import Installer, Packages, forget_oldest, kept_place
from warmcell.workspace.private_directory import PrivateDirectory

if TYPE_CHECKING:
    from warmcell.net.rules.npm_registry import NpmRegistry

_KEPT, _MADE, _SETTINGS = "/kept", "/made", "/settings"
#: `name`, `@scope/name`, each with a version, a range or a tag; no address, path, alias or option.
_PART = r"[a-z0-9][a-z0-9._-]*"
_NAME = re.compile(rf"(?:@{_PART}/)?{_PART}(?:@[\w^~<>=*][\w.^~<>=*+| -]*)?", re.ASCII | re.IGNORECASE)
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--no-update-notifier", "--loglevel=error")
_ALWAYS = ("--logs-max=0", "--userconfig", f"{_SETTINGS}/npmrc", "--globalconfig", os.devnull, "--prefix", _MADE)
#: What npm says of a failure besides the reason.
_NOISE = re.compile(r"code |A complete log|\s*$|This is probably|404\s*$|errno|syscall|path ")
_HINT = "look at the name and the version; packages that are not in a registry are not installed"


@dataclass(frozen=True, slots=True)
class Npm:
    """The host's: its Node and its own program."""

    node: str
    program: str

    @property
    def shown(self) -> tuple[str, ...]:
        """Beside /usr, which every cage has: the package that npm is."""
        return beside_usr([self.node, os.path.dirname(os.path.dirname(self.program))])


async def install_npm(installer: Installer, names: Sequence[str], before: Packages | None) -> Packages:
    """All that was there and these. What fails leaves all as it was."""
    names = checked_names(names)
    npm = await in_thread(lambda: find_npm(installer))
    registry = await in_thread(lambda: configured_registry(npm))
    kept = await in_thread(lambda: kept_place("npm", registry.urls))
    settings = await in_thread(lambda: PrivateDirectory("packages"))
    try:
        made = await in_thread(lambda: _begun(settings.path, registry, before))
        await _find(installer, npm, registry, names, settings.path, made)
        await _unpack(installer, npm, registry, kept, settings.path, made)
        await in_thread(lambda: forget_oldest(kept))
    finally:
        await in_thread(settings.close)
    return made


def _begun(settings: str, registry: NpmRegistry, before: Packages | None) -> Packages:
    with open(os.path.join(settings, "npmrc"), "w", encoding="utf-8") as file:
        file.write(registry.settings())
    made = Packages(before)
    os.makedirs(os.path.join(made.path, NPM_PLACE), exist_ok=True)
    return made


async def _find(
    installer: Installer, npm: Npm, registry: NpmRegistry, names: Sequence[str], settings: str, made: Packages
) -> None:
    words = ["install", "--package-lock-only", "--cache", "/tmp/npm", *_QUIET, *_ALWAYS, "--", *names]
    await _npm(installer, npm, registry, _paths(npm, registry, settings, made), words, f"find {', '.join(names)}")


async def _unpack(
    installer: Installer, npm: Npm, registry: NpmRegistry, kept: str, settings: str, made: Packages
) -> None:
    paths = [AllowedPath(kept, AccessMode.READ_WRITE, _KEPT), *_paths(npm, registry, settings, made)]
    words = ["ci", "--cache", _KEPT, "--prefer-offline", *_QUIET, *_ALWAYS]
    await _npm(installer, npm, registry, paths, words, "fetch and unpack the packages")


def _paths(npm: Npm, registry: NpmRegistry, settings: str, made: Packages) -> list[AllowedPath]:
    shown = [*npm.shown, *(beside_usr([registry.certificate]) if registry.certificate else ())]
    return [
        AllowedPath(os.path.join(made.path, NPM_PLACE), AccessMode.READ_WRITE, _MADE),
        AllowedPath(settings, AccessMode.READ_ONLY, _SETTINGS),
        *(AllowedPath(path, AccessMode.READ_ONLY) for path in shown if not path.startswith("/etc/ssl/")),
    ]


async def _npm(
    installer: Installer, npm: Npm, registry: NpmRegistry, paths: list[AllowedPath], words: list[str], what: str
) -> None:
    from warmcell.net.rules.fetch_policy import FetchPolicy

    # Who configured the registry chose its address, which may well be a private one.
    way_out = FetchPolicy(rules=registry.rules(), deny_private_ips=False)
    policy = SandboxPolicy(tuple(paths), allow_process_spawn=True)
    # The cage's own loopback is not the host's: a registry there is reached through the proxy as well.
    env = {"no_proxy": "", "NO_PROXY": "", "npm_config_noproxy": ""}
    result = await installer.in_cage(policy, [npm.node, npm.program, *words], env, way_out)
    if not result.ok:
        raise installer.explained(result, f"npm could not {what}", _reasons(result.stderr), _HINT)


def _reasons(stderr: str) -> list[str]:
    lines = [re.sub(r"^npm (?:error|ERR!) ?", "", line) for line in stderr.splitlines() if line.startswith("npm ")]
    return [line.strip() for line in lines if not _NOISE.match(line)][:1]


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names and versions. Whatever else npm takes is not for a model to fill in."""
    if not names:
        raise InvalidRequest("name at least one", field="packages")
    for name in names:
        if not _NAME.fullmatch(check_text("packages", name)):
            hint = "'lodash', 'lodash@^4.17.0' or '@types/node@20'"
            raise InvalidRequest(f"{name[:60]!r} is not a name with a version", field="packages", hint=hint)
    return tuple(names)


def find_npm(installer: Installer) -> Npm:
    """The one that came with the sandbox's Node, else the first on PATH."""
    node = find_node(installer.config, runs_javascript, "npm needs Node.js", remedy=REMEDIES["javascript"]).path
    beside = os.path.join(os.path.dirname(os.path.dirname(node)), "lib/node_modules/npm/bin/npm-cli.js")
    for path in (beside, find_program("npm")):
        if path and os.path.isfile(path) and os.path.realpath(path).endswith(".js"):
            return Npm(node, os.path.realpath(path))
    raise ProvisionFailed("packages", "there is no npm on this host", "install the npm that belongs to its Node.js")


def configured_registry(npm: Npm) -> NpmRegistry:
    """As npm itself finds it: its files and the environment."""
    from warmcell.net.rules.npm_registry import registry_from

    try:
        return registry_from(ask([npm.node, npm.program, "config", "ls", "--long", "--json"]))
    except BackendUnavailable as error:
        raise ProvisionFailed("packages", f"npm does not work: {error.message}", "try `npm config ls`") from None
