"""`sandbox.install`: packages for one sandbox, fetched and unpacked in cages of their own.

No code of a package runs on the way: only wheels are taken, and they are unpacked, not built. What pip fetched is kept
for other sandboxes by pip's own cache, by address, and compared each time with the hash that the index tells. Only the
cage that fetches can write there; guests never see it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from warmcell.core.errors import BackendUnavailable, InvalidRequest, ProvisionFailed, SandboxError
from warmcell.core.records import dataclass, replace
from warmcell.core.types import ExecRequest, ExecResult, Limits, check_text
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.held_directories import cache_place, make_cache
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.sandbox.guest_config import PACKAGES
from warmcell.workspace.private_directory import PrivateDirectory

if TYPE_CHECKING:
    from warmcell.core.contracts import SandboxEnforcer
    from warmcell.net.rules.fetch_policy import FetchPolicy
    from warmcell.net.rules.package_index import PackageIndex, PublicIndex

_KEPT, _FETCHED = "/kept", "/fetched"
MOST_KEPT_BYTES = 1 << 30
_SECONDS = 600.0
#: A name with extras and versions, as PEP 508 has them; no option, path, address or marker.
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"{_NAME}\s*(?:\[\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\])?\s*"
    r"(?:(?:===|[=~!<>]=|[<>])\s*[\w.*+!-]+\s*(?:,\s*(?:===|[=~!<>]=|[<>])\s*[\w.*+!-]+\s*)*)?",
    re.ASCII,
)
#: Which errno it is depends on who met the limit: a file, the file system, a quota.
_FULL = re.compile(r"Errno (?:27|28|122)\b|No space left|File too large|no space left|ENOSPC|EDQUOT|EFBIG")
_WHEEL = re.compile(r"[\w.+!-]+\.whl", re.ASCII)


class Packages:
    """A directory of installed packages that does not change any more; gone when nobody has it."""

    def __init__(self, before: Packages | None = None) -> None:
        private = PrivateDirectory("packages")
        self.path = private.path
        self.close = weakref.finalize(self, private.close)
        if before is not None:
            shutil.copytree(before.path, self.path, symlinks=True, copy_function=_linked, dirs_exist_ok=True)


def _linked(source: str, target: str) -> None:
    """npm writes into its lists as they are, and they are others' too."""
    if os.path.basename(source) in ("package.json", "package-lock.json"):
        shutil.copyfile(source, target)
    else:
        os.link(source, target)


@dataclass(frozen=True, slots=True)
class Installer:
    """Where and how packages are installed for one sandbox."""

    config: ProcessConfig
    enforcer: str | SandboxEnforcer
    disk_mb: int

    async def install(self, requirements: Sequence[str], before: Packages | None) -> Packages:
        """All that was there and these. What fails leaves all as it was."""
        from warmcell.lifetime.threads import in_thread

        names = checked_requirements(requirements)
        index = await in_thread(self._index)
        kept = await in_thread(lambda: kept_place("pip", (index.urls, index.directories)))
        fetched = await in_thread(lambda: PrivateDirectory("packages"))
        try:
            await self._fetch(names, index, kept, fetched.path)
            wheels = await in_thread(lambda: wheels_in(fetched.path))
            await in_thread(lambda: forget_oldest(kept))
            made = await in_thread(lambda: Packages(before))
            await self._unpack(wheels, fetched.path, made)
        finally:
            await in_thread(fetched.close)
        return made

    def _index(self) -> PackageIndex:
        from warmcell.languages.python import find_interpreter
        from warmcell.net.rules.package_index import configured_index

        return configured_index(public_index(find_interpreter(self.config).path))

    async def _fetch(self, names: Sequence[str], index: PackageIndex, kept: str, fetched: str) -> None:
        from warmcell.net.rules.fetch_policy import FetchPolicy

        paths = [AllowedPath(kept, AccessMode.READ_WRITE, _KEPT), AllowedPath(fetched, AccessMode.READ_WRITE, _FETCHED)]
        shown = [*index.directories, *([index.certificate] if index.certificate else ())]
        paths += [
            AllowedPath(path, AccessMode.READ_ONLY) for path in shown if not path.startswith(("/usr/", "/etc/ssl/"))
        ]
        policy = SandboxPolicy(tuple(paths), allow_process_spawn=True)
        words = ["download", "--cache-dir", _KEPT, "--dest", _FETCHED, "--only-binary", ":all:"]
        words += [word for directory in index.directories for word in ("--find-links", directory)]
        # The cage's own loopback is not the host's: an index there is reached through the proxy as well.
        env = {**index.variables(), "no_proxy": "", "NO_PROXY": ""}
        # Who configured the index chose its address, which may well be a private one.
        way_out = FetchPolicy(rules=index.rules(), deny_private_ips=False) if index.urls else None
        await self._pip(policy, [*words, "--", *names], env, f"could not fetch {', '.join(names)}", way_out)

    async def _unpack(self, wheels: Sequence[str], fetched: str, made: Packages) -> None:
        paths = (
            AllowedPath(fetched, AccessMode.READ_ONLY, _FETCHED),
            AllowedPath(made.path, AccessMode.READ_WRITE, PACKAGES),
        )
        policy = SandboxPolicy(paths, allow_process_spawn=True)
        words = ["install", "--no-cache-dir", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        words += ["--target", PACKAGES, "--", *(f"{_FETCHED}/{name}" for name in wheels)]
        await self._pip(policy, words, {"PIP_CONFIG_FILE": os.devnull}, "could not unpack the packages")

    async def _pip(
        self,
        policy: SandboxPolicy,
        words: Sequence[str],
        env: dict[str, str],
        failure: str,
        way_out: FetchPolicy | None = None,
    ) -> None:
        from warmcell.languages.python import find_interpreter

        argv = [find_interpreter(self.config).path, "-m", "pip", *_QUIET, *words]
        result = await self.in_cage(policy, argv, env, way_out)
        if result.ok:
            return
        if "No module named pip" in result.stderr:
            raise _no_pip()
        said = [line.removeprefix("ERROR: ") for line in result.stderr.splitlines() if line.startswith("ERROR: ")]
        hint = "only wheels are installed: look at the name, and for a wheel for this Python"
        raise self.explained(result, failure, said, hint)

    async def in_cage(
        self, policy: SandboxPolicy, argv: Sequence[str], env: dict[str, str], way_out: FetchPolicy | None
    ) -> ExecResult:
        """A package manager, in a cage of its own."""
        from warmcell.backends.process.backend import ProcessBackend

        limits = Limits(memory_mb=1024, disk_mb=self.disk_mb)
        config = replace(self.config, pool_size=0, pool_min=0)
        request = ExecRequest("command", "install", _SECONDS, env=env, limits=limits)
        policy = replace(policy, limits=limits)
        async with ProcessBackend(config, self.enforcer, policy, fetch_policy=way_out) as backend:
            return await backend.execute_command(argv, "/work", request)

    def explained(self, result: ExecResult, failure: str, said: Sequence[str], hint: str) -> SandboxError:
        """Why it failed; `said` is what the package manager gave as its reasons."""
        if _FULL.search(result.stderr) or any(denial.kind == "disk" for denial in result.denials):
            reason = f"they do not fit into the disk limit of {self.disk_mb} MB"
            return ProvisionFailed("packages", reason, "raise Limits(disk_mb=...) of the sandbox")
        reason = said[-1] if said else result.stderr.strip()[-200:] or f"exit status {result.exit_code}"
        for denial in result.denials:
            if denial.kind == "network":
                hint = f"{denial.what} was refused: {denial.rule}"
                break
        return ProvisionFailed("packages", f"{failure}: {reason}", hint)


def kept_place(manager: str, sources: object) -> str:
    """One for each index: what one of them calls a name is nothing to another."""
    import hashlib

    key = hashlib.sha256(repr((manager, sources)).encode()).hexdigest()[:32]
    path = os.path.join(cache_place(), "packages", key)
    try:
        make_cache(os.path.dirname(path))
        make_cache(path)
    except OSError as error:
        raise ProvisionFailed(
            path, f"cannot be made: {error.strerror}", "set XDG_CACHE_HOME to a place with room"
        ) from None
    return path


_QUIET = ("--no-input", "--disable-pip-version-check", "--no-color", "--quiet")


@lru_cache(maxsize=8)
def public_index(interpreter: str) -> PublicIndex:
    """As the interpreter's own pip has it, which is where its name belongs."""
    from warmcell.enforcers.host import ask
    from warmcell.net.rules.package_index import PublicIndex

    question = "from pip._internal.models.index import PyPI; print(PyPI.simple_url, PyPI.file_storage_domain)"
    try:
        url, files_host = ask([interpreter, "-I", "-c", question]).split()
    except (BackendUnavailable, ValueError):
        raise _no_pip() from None
    return PublicIndex(url, files_host)


def _no_pip() -> ProvisionFailed:
    return ProvisionFailed(
        "packages", "the sandbox's Python has no pip", "install it there, or name another python_path"
    )


def checked_requirements(requirements: Sequence[str]) -> tuple[str, ...]:
    """Names and versions. Whatever else pip takes (addresses, paths, options) is not for a model to fill in."""
    if not requirements:
        raise InvalidRequest("name at least one", field="packages")
    for requirement in requirements:
        if not _REQUIREMENT.fullmatch(check_text("packages", requirement)):
            hint = "'pandas', 'pandas==2.2.0' or 'fastapi[standard]>=0.110'"
            raise InvalidRequest(f"{requirement[:60]!r} is not a name with a version", field="packages", hint=hint)
    return tuple(requirements)


def wheels_in(fetched: str) -> tuple[str, ...]:
    """What a cage fetched, by name; whatever else it left there is not looked at."""
    found = (entry for entry in os.scandir(fetched) if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode))
    return tuple(sorted(entry.name for entry in found if _WHEEL.fullmatch(entry.name)))


def forget_oldest(kept: str) -> None:
    """Beyond what may be kept, what was not written for longest goes. Another program may be at it too."""
    paths = [os.path.join(place, name) for place, _, names in os.walk(kept) for name in names]
    total = 0
    for _, size, path in sorted(filter(None, map(_looked_at, paths)), reverse=True):
        total += size
        if total > MOST_KEPT_BYTES:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _looked_at(path: str) -> tuple[float, int, str] | None:
    try:
        state = os.lstat(path)
    except OSError:
        return None
    return state.st_mtime, state.st_size, path
