"""`sandbox.install`: Python packages for one sandbox, downloaded and unpacked in cages of their own.

No code of a package runs: only wheels are accepted, and they are unpacked, not built. Where pip would build a source
archive after all, for a dependency that is a URL, the cage refuses the process for it. pip caches downloads by URL for
other sandboxes, and compares them each time with the hash in the index. Only the downloading cage can write to the
cache; guests never see it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from warmcell.core.errors import BackendUnavailable, InvalidRequest, ProvisionFailed, SandboxError
from warmcell.core.light import on_error
from warmcell.core.lines import one_line
from warmcell.core.records import dataclass, replace
from warmcell.core.types import MIB, ExecRequest, ExecResult, Limits, check_text
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.held_directories import make_cache, user_cache, writable_directory
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.sandbox.local.guest_config import PACKAGES
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.root import DIRECTORY_SPACE, Root, space_for
from warmcell.workspace.walk import TreeLimits, walk

if TYPE_CHECKING:
    from warmcell.enforcers.contract import SandboxEnforcer
    from warmcell.net.rules.fetch_policy import FetchPolicy
    from warmcell.net.rules.package_index import PackageIndex, PublicIndex

_CACHE, _WHEELS = "/cache", "/wheels"
MAX_CACHE_BYTES = 1 << 30
_INSTALL_SECONDS = 600.0
#: The disk limit of the sandbox bounds what is installed, and so what is copied.
_COPY_LIMITS = TreeLimits(entries=1_000_000, total_bytes=1 << 40, path_bytes=256 * MIB, seconds=_INSTALL_SECONDS)
#: A name with extras and versions as in PEP 508; no options, paths, URLs or markers.
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"{_NAME}\s*(?:\[\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\])?\s*"
    r"(?:(?:===|[=~!<>]=|[<>])\s*[\w.*+!-]+\s*(?:,\s*(?:===|[=~!<>]=|[<>])\s*[\w.*+!-]+\s*)*)?",
    re.ASCII,
)
#: With extras and versions. Matching spaces takes quadratic time.
_LONGEST_NAME = 1000
#: The errno depends on what is full: the file size limit, the file system or a quota.
_FULL = re.compile(r"Errno (?:27|28|122)\b|No space left|File too large|no space left|ENOSPC|EDQUOT|EFBIG")
#: pip and npm could not start a program.
_NO_PROCESS = re.compile(r"PermissionError: \[Errno 1\]|spawn EPERM")
_WHEEL = re.compile(r"[\w.+!-]+\.whl", re.ASCII)
#: Characters of the output of pip and npm in an error.
_LONGEST_REASON = 500


class Packages:
    """A directory of installed packages. It never changes, and is removed with the last reference."""

    def __init__(self, before: Packages | str | None = None) -> None:
        """`before`: those to begin with, or a directory that has them."""
        private = PrivateDirectory("packages")
        self.path = private.path
        self.close = weakref.finalize(self, private.close)
        if before is not None:
            copy_packages(before if isinstance(before, str) else before.path, self.path, is_shared=True)


def copy_packages(source: str, target: str, *, is_shared: bool = False) -> None:
    """Copies a directory of packages, whose files may be hard links to the same files. `target` is empty.

    A package chooses the depth of its directories. npm rewrites its lists in place, so these are never shared.
    """
    lists = ("package.json", "package-lock.json")
    with Root(source) as packages, Root(target) as copy:
        copy_tree(packages, copy, _COPY_LIMITS, is_shared=lambda name: is_shared and name not in lists)


def _keep_commands(before: Packages | None, packages: Packages) -> None:
    """pip replaced `bin` as a whole: adds the commands of earlier packages again. The cage has ended by now."""
    if before is None or not is_directory(os.path.join(before.path, "bin")):
        return
    target = os.path.join(packages.path, "bin")
    if not os.path.lexists(target):
        os.mkdir(target)
    for entry in os.scandir(os.path.join(before.path, "bin")) if is_directory(target) else ():
        path = os.path.join(target, entry.name)
        if entry.is_file(follow_symlinks=False) and not os.path.lexists(path):
            os.link(entry.path, path, follow_symlinks=False)


@dataclass(frozen=True, slots=True)
class Installer:
    """Where and how packages are installed for one sandbox."""

    config: ProcessConfig
    enforcer: str | SandboxEnforcer
    disk_mb: int
    allow_weaker: str | None = None

    async def install(self, requirements: Sequence[str], before: Packages | None) -> Packages:
        """The packages in `before` plus these. `before` is not changed."""
        from warmcell.lifetime.threads import in_thread

        names = check_requirements(requirements)
        index = await in_thread(self._index)
        cache = await in_thread(lambda: cache_directory("pip", (index.urls, index.directories)))
        packages = await in_thread(lambda: Packages(before), discard=lambda made: made.close())
        async with on_error(lambda: in_thread(packages.close)):  # an error may keep the last reference
            downloads = await in_thread(lambda: PrivateDirectory("packages"), discard=PrivateDirectory.close)
            try:
                await self._download(names, index, cache, downloads.path)
                wheels = await in_thread(lambda: list_wheels(downloads.path))
                await self._unpack(wheels, downloads.path, packages)
                await in_thread(lambda: _keep_commands(before, packages))
                await in_thread(lambda: self.check_size(packages))
            finally:
                await in_thread(downloads.close)
                await in_thread(lambda: prune_cache(cache))  # a failed install has filled it too
        return packages

    def _index(self) -> PackageIndex:
        from warmcell.languages.python import find_interpreter
        from warmcell.net.rules.package_index import configured_index

        return configured_index(public_index(find_interpreter(self.config).path))

    async def _download(self, names: Sequence[str], index: PackageIndex, cache: str, downloads: str) -> None:
        from warmcell.net.rules.fetch_policy import FetchPolicy

        paths = [
            AllowedPath(cache, AccessMode.READ_WRITE, _CACHE),
            AllowedPath(downloads, AccessMode.READ_WRITE, _WHEELS),
        ]
        readable = [*index.directories, *([index.certificate] if index.certificate else ())]
        paths += [
            AllowedPath(path, AccessMode.READ_ONLY) for path in readable if not path.startswith(("/usr/", "/etc/ssl/"))
        ]
        policy = SandboxPolicy(tuple(paths), allow_process_spawn=False)
        words = ["download", "--cache-dir", _CACHE, "--dest", _WHEELS, "--only-binary", ":all:"]
        words += [word for directory in index.directories for word in ("--find-links", directory)]
        # The loopback of the cage is not the host's: an index there is reached through the proxy too.
        env = {**index.variables(), "no_proxy": "", "NO_PROXY": ""}
        # The host's user configured the index, whose address may well be private.
        egress = FetchPolicy(rules=index.rules(), deny_private_ips=False) if index.urls else None
        await self._pip(policy, [*words, "--", *names], env, f"could not fetch {', '.join(names)}", egress)

    async def _unpack(self, wheels: Sequence[str], downloads: str, packages: Packages) -> None:
        paths = (
            AllowedPath(downloads, AccessMode.READ_ONLY, _WHEELS),
            AllowedPath(packages.path, AccessMode.READ_WRITE, PACKAGES),
        )
        policy = SandboxPolicy(paths, allow_process_spawn=False)
        words = ["install", "--no-cache-dir", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        words += ["--target", PACKAGES, "--", *(f"{_WHEELS}/{name}" for name in wheels)]
        await self._pip(policy, words, {"PIP_CONFIG_FILE": os.devnull}, "could not unpack the packages")

    async def _pip(
        self,
        policy: SandboxPolicy,
        words: Sequence[str],
        env: dict[str, str],
        failure: str,
        egress: FetchPolicy | None = None,
    ) -> None:
        from warmcell.languages.python import find_interpreter

        python = find_interpreter(self.config).path
        result = await self.run_in_cage(policy, [python, "-m", "pip", *_QUIET, *words], env, egress, python=python)
        if result.ok:
            return
        if "No module named pip" in result.stderr:
            raise _no_pip()
        lines = (line.removeprefix("ERROR: ") for line in result.stderr.splitlines() if line.startswith("ERROR: "))
        reasons = [line for line in lines if line != "Exception:"]  # a traceback of pip follows
        hint = "only wheels are installed: check the name, and that there is a wheel for this Python"
        raise self.make_error(result, failure, reasons, hint)

    async def run_in_cage(
        self,
        policy: SandboxPolicy,
        argv: Sequence[str],
        env: dict[str, str],
        egress: FetchPolicy | None,
        python: str | None = None,
    ) -> ExecResult:
        """Runs a package manager in a cage of its own, which shows the installation of `python`, wherever it is."""
        from warmcell.backends.process.backend import ProcessBackend

        limits = Limits(memory_mb=1024, disk_mb=self.disk_mb)
        config = replace(self.config, pool_size=0, pool_min=0, python_path=python or self.config.python_path)
        request = ExecRequest("command", "install", _INSTALL_SECONDS, env=env, limits=limits)
        policy = replace(policy, limits=limits)
        weaker, has_tools = self.allow_weaker, python is not None
        async with ProcessBackend(
            config, self.enforcer, policy, fetch_policy=egress, has_tools=has_tools, allow_weaker=weaker
        ) as backend:
            return await backend.execute_command(argv, "/work", request)

    def check_size(self, packages: Packages) -> None:
        """Bounds all packages of the sandbox together: a cage measures only what one installation adds."""
        with Root(packages.path) as root:
            entries = walk(root, limits=_COPY_LIMITS)
            used = sum(space_for(entry.state.st_size) if entry.kind == "file" else DIRECTORY_SPACE for entry in entries)
        if used > self.disk_mb * MIB:
            raise self._too_large()

    def _too_large(self) -> ProvisionFailed:
        reason = f"the packages do not fit into the disk limit of {self.disk_mb} MB"
        return ProvisionFailed("packages", reason, "raise Limits(disk_mb=...) of the sandbox")

    def make_error(self, result: ExecResult, failure: str, reasons: Sequence[str], hint: str) -> SandboxError:
        """The error for a failed run; `reasons` are from the output of the package manager."""
        refused = {denial.kind for denial in result.denials}
        if "disk" not in refused and (place := find_full_place()):
            return host_failure(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place), "install packages")
        if "disk" in refused or _FULL.search(result.stderr):
            return self._too_large()
        if "process" in refused and _NO_PROCESS.search(result.stderr):
            reason = "one of the packages would have to be built, or fetched by git, and no code of packages is run"
            return ProvisionFailed("packages", f"{failure}: {reason}", hint)
        said = reasons[-1] if reasons else result.stderr.strip()[-200:]
        # The author of a package chooses some of these words.
        reason = one_line(said, _LONGEST_REASON) or f"exit status {result.exit_code}"
        for denial in result.denials:
            if denial.kind == "network":
                hint = f"{denial.what} was refused: {denial.rule}"
                break
        return ProvisionFailed("packages", f"{failure}: {reason}", hint)


def find_full_place() -> str | None:
    """A directory of ours on a host disk with less than a MiB left; None if there is none."""
    for place in filter(None, (writable_directory(), user_cache())):
        with suppress(OSError):
            found = os.statvfs(place)
            if found.f_bavail * found.f_frsize < MIB:
                return place
    return None


def cache_directory(manager: str, sources: object) -> str:
    """One cache per index, because the same name may be another package on another index."""
    import hashlib

    key = hashlib.sha256(repr((manager, sources)).encode()).hexdigest()[:32]
    path = os.path.join(user_cache(), "packages", key)
    try:
        make_cache(os.path.dirname(path))
        make_cache(path)
    except OSError as error:
        raise ProvisionFailed(
            path, f"cannot be created: {error.strerror}", "set XDG_CACHE_HOME to a writable directory"
        ) from None
    return path


_QUIET = ("--no-input", "--disable-pip-version-check", "--no-color", "--quiet")


@lru_cache(maxsize=8)
def public_index(interpreter: str) -> PublicIndex:
    """The public index as the interpreter's own pip defines it, and the interpreter's prefix."""
    from warmcell.enforcers.host import query_tool
    from warmcell.net.rules.package_index import PublicIndex

    question = "import sys; from pip._internal.models.index import PyPI as it; "
    question += "print(it.simple_url, it.file_storage_domain, sys.prefix)"
    try:
        url, files_host, prefix = query_tool([interpreter, "-I", "-c", question]).split(maxsplit=2)
    except (BackendUnavailable, ValueError):
        raise _no_pip() from None
    return PublicIndex(url, files_host, prefix)


def _no_pip() -> ProvisionFailed:
    return ProvisionFailed(
        "packages", "the sandbox's Python has no pip", "install it there, or set another python_path"
    )


def check_requirements(requirements: Sequence[str]) -> tuple[str, ...]:
    return check_names(requirements, _REQUIREMENT, "'pandas', 'pandas==2.2.0' or 'fastapi[standard]>=0.110'")


def check_names(names: Sequence[str], pattern: re.Pattern[str], examples: str) -> tuple[str, ...]:
    """Only names and versions: a model must not pass anything else that pip and npm accept (URLs, paths, options)."""
    if not names:
        raise InvalidRequest("name at least one", field="packages")
    for name in names:
        if len(check_text("packages", name)) > _LONGEST_NAME or not pattern.fullmatch(name):
            raise InvalidRequest(f"{name[:60]!r} is not a name with a version", field="packages", hint=examples)
    return tuple(names)


def list_wheels(downloads: str) -> tuple[str, ...]:
    """The names of the wheels that the cage downloaded. Ignores everything else that it left there."""
    files = (entry for entry in os.scandir(downloads) if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode))
    return tuple(sorted(entry.name for entry in files if _WHEEL.fullmatch(entry.name)))


def prune_cache(cache: str) -> None:
    """Removes the oldest files over the limit. Other programs may do the same at the same time."""
    paths = [os.path.join(place, name) for place, _, names in os.walk(cache) for name in names]
    total = 0
    for _, size, path in sorted(filter(None, map(_stat_file, paths)), reverse=True):
        total += size
        if total > MAX_CACHE_BYTES:
            with suppress(FileNotFoundError):
                os.unlink(path)


def is_directory(path: str) -> bool:
    """Not through a link, which the cage may have left."""
    return os.path.isdir(path) and not os.path.islink(path)


def _stat_file(path: str) -> tuple[float, int, str] | None:
    try:
        state = os.lstat(path)
    except OSError:
        return None
    return state.st_mtime, state.st_size, path
