"""Puts the files of a manifest into a new directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from warmcell.core.errors import ProvisionFailed, SandboxError
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.files import make_dir, write_file
from warmcell.workspace.names import split_relative
from warmcell.workspace.root import Root
from warmcell.workspace.transfer import upload_path
from warmcell.workspaces.manifest import GitRepo, Manifest

_GIT_SECONDS = 600.0
_UPLOADS = ArchiveLimits(entries=2_000_000, total_bytes=16 << 30)
#: No hooks, no helpers and no configuration of this user: the repository decides nothing about what the host runs.
_GIT_OPTIONS = ("-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "core.fsmonitor=false")
_GIT_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_LFS_SKIP_SMUDGE": "1",
}


def provision(manifest: Manifest, directory: str) -> None:
    """Raises `ProvisionFailed` naming what could not be made."""
    with Root(directory) as root:
        for repository in manifest.git:
            _clone(repository, directory)
        for path in manifest.directories:
            with _naming(path):
                make_dir(root, split_relative(path), parents=True)
        for path, source in manifest.uploads.items():
            with _naming(path):
                upload_path(root, split_relative(path), Path(source), _UPLOADS)
        for path, content in manifest.files.items():
            with _naming(path):
                write_file(root, split_relative(path), content.encode() if isinstance(content, str) else content)


class _naming:  # noqa: N801  # reads as a statement
    """Turns an error about a path into `ProvisionFailed`. What the host is to blame for, such as a full disk, stays."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, SandboxError) and error.fault != "host":
            raise ProvisionFailed(self._path, str(error), error.hint or "correct the manifest") from error


def _clone(repository: GitRepo, directory: str) -> None:
    target = os.path.join(directory, *split_relative(repository.into))
    clone = ("clone", "--quiet", "--no-hardlinks", "--no-recurse-submodules", "--", repository.url, target)
    _git(repository, clone)
    if repository.ref is not None:
        _git(repository, ("-C", target, "checkout", "--quiet", repository.ref, "--"))


def _git(repository: GitRepo, words: tuple[str, ...]) -> None:
    suggestion = "check the address and the ref"
    try:
        ended = subprocess.run(
            ["git", *_GIT_OPTIONS, *words],
            env=os.environ | _GIT_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise ProvisionFailed(repository.url, "git is not installed", "install git") from None
    except subprocess.TimeoutExpired:
        raise ProvisionFailed(repository.url, f"git timed out after {_GIT_SECONDS:g} s", suggestion) from None
    if ended.returncode != 0:
        reason = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["git failed"]
        raise ProvisionFailed(repository.url, reason[0][:300], suggestion)
