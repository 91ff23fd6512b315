"""Manifest: what a new workspace has in it, and the settings of its sandboxes. In Python or TOML."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warmcell.core.errors import InvalidRequest, ProvisionFailed, SandboxError
from warmcell.core.records import dataclass, field
from warmcell.core.types import check_env
from warmcell.policy.codec import RecordSchema, from_file
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.files import make_dir, write_file
from warmcell.workspace.names import split_relative
from warmcell.workspace.root import Root
from warmcell.workspace.transfer import upload_path

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


@dataclass(frozen=True, slots=True)
class GitRepo:
    """A repository to clone: a URL, or a path of the host. `ref` is a branch, tag or commit; None: its default."""

    url: str
    ref: str | None = None
    into: str = "."

    def __post_init__(self) -> None:
        for name, text in (("url", self.url), ("ref", self.ref)):
            if text is None and name == "ref":
                continue
            if not isinstance(text, str) or not text or text.startswith("-") or "\0" in text:
                raise InvalidRequest("must be text that does not begin with '-'", field=name)
        if "::" in self.url.split("/", 1)[0]:
            raise InvalidRequest("must not name a remote helper", field="url", hint="use https, ssh or a path")
        split_relative(self.into)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Paths are relative to the work directory. `uploads` copies files and directories of the host."""

    files: Mapping[str, bytes | str] = field(default_factory=dict)
    directories: Sequence[str] = ()
    git: Sequence[GitRepo] = ()
    uploads: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    packages: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[int] = ()

    def __post_init__(self) -> None:
        for path, content in _items("files", self.files):
            split_relative(path)
            if not isinstance(content, bytes | str):
                raise InvalidRequest("must be text or bytes", field=f"files.{path[:80]}")
        for path, source in _items("uploads", self.uploads):
            split_relative(path)
            os.fspath(source)
        for path in _texts("directories", self.directories):
            split_relative(path)
        _texts("packages", self.packages)
        check_env(self.env)
        for port in self.ports:
            if type(port) is not int or not 0 < port < 65536:
                raise InvalidRequest("must be numbers from 1 to 65535", field="ports")
        if not all(isinstance(repository, GitRepo) for repository in self.git):
            raise InvalidRequest("must be a list of GitRepo", field="git")

    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> Manifest:
        """Read a .toml or .json file. Paths of the host are relative to the directory that the file is in."""
        schema = RecordSchema("manifest", Manifest, {}, {"git": GitRepo}, lambda _: None)
        made: Manifest = from_file(schema, path)
        here = os.path.dirname(os.path.abspath(os.fspath(path)))
        uploads = {name: os.path.join(here, os.fspath(source)) for name, source in made.uploads.items()}
        git = [GitRepo(_from_here(here, repo.url), repo.ref, repo.into) for repo in made.git]
        return Manifest(made.files, made.directories, git, uploads, made.image, made.packages, made.env, made.ports)

    def settings(self) -> dict[str, Any]:
        """What stays with the workspace after its files were made."""
        plain = {"image": self.image, "packages": list(self.packages), "env": dict(self.env), "ports": list(self.ports)}
        return {name: value for name, value in plain.items() if value}


def _from_here(here: str, url: str) -> str:
    return os.path.join(here, url) if url.startswith(("./", "../")) else url


def _items(name: str, mapping: object) -> list[tuple[str, Any]]:
    if not isinstance(mapping, Mapping):
        raise InvalidRequest("must have a path for each value", field=name)
    return list(mapping.items())


def _texts(name: str, values: object) -> list[str]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(item, str) for item in values):
        raise InvalidRequest("must be a list of texts", field=name)
    return list(values)


def provision(manifest: Manifest, directory: str) -> None:
    """Puts the files of a manifest into a new directory. Raises `ProvisionFailed` naming what could not be made."""
    with Root(directory) as root:
        for repository in manifest.git:
            if parts := split_relative(repository.into):
                with _naming(repository.into):  # git would follow a link that an earlier repository brought
                    make_dir(root, parts, parents=True)
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
