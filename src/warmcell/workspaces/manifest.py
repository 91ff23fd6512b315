"""Manifest: the files of a new workspace, and the settings of its sandboxes. In Python, TOML or JSON."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warmcell.core.errors import InvalidRequest, ProvisionFailed, SandboxError
from warmcell.core.records import dataclass, field, replace
from warmcell.core.types import check_env
from warmcell.policy.codec import RecordSchema, from_file
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.files import make_dir, write_file
from warmcell.workspace.names import split_relative
from warmcell.workspace.root import Root
from warmcell.workspace.transfer import upload_path

_GIT_SECONDS = 600.0
_UPLOADS = ArchiveLimits(entries=2_000_000, total_bytes=16 << 30)
#: No hooks, helpers or user configuration: a repository must not decide what the host executes.
_GIT_OPTIONS = ("-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "core.fsmonitor=false")
#: Git sets these for its hooks and aliases. They would make git write to the repository that started this program.
_OF_OTHER_REPOSITORY = frozenset(
    "GIT_DIR GIT_WORK_TREE GIT_COMMON_DIR GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES "
    "GIT_PREFIX GIT_GRAFT_FILE GIT_SHALLOW_FILE".split()
)
_GIT_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_LFS_SKIP_SMUDGE": "1",
}


@dataclass(frozen=True, slots=True)
class GitRepo:
    """A repository to clone, by URL or host path. `ref` is a branch, tag or commit; None: the default branch."""

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
            if not isinstance(source, str | os.PathLike):
                raise InvalidRequest("must be a path of the host", field=f"uploads.{path[:80]}")
        for path in _texts("directories", self.directories):
            split_relative(path)
        _texts("packages", self.packages)
        check_env(self.env)
        ports = self.ports if isinstance(self.ports, Sequence) else [None]
        if not all(type(port) is int and 0 < port < 65536 for port in ports):
            raise InvalidRequest("must be a list of numbers from 1 to 65535", field="ports")
        if not isinstance(self.git, Sequence) or not all(isinstance(repository, GitRepo) for repository in self.git):
            raise InvalidRequest("must be a list of GitRepo", field="git")

    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> Manifest:
        """Read a .toml or .json file. Host paths are relative to the file's directory."""
        schema = RecordSchema("manifest", Manifest, {}, {"git": GitRepo}, lambda _: None)
        read: Manifest = from_file(schema, path)
        here = os.path.dirname(os.path.abspath(os.fspath(path)))
        uploads = {name: os.path.join(here, os.fspath(source)) for name, source in read.uploads.items()}
        git = [replace(repo, url=_from_here(here, repo.url)) for repo in read.git]
        return replace(read, git=git, uploads=uploads)

    def settings(self) -> dict[str, Any]:
        """The part of the manifest that is stored with the workspace."""
        plain = {"image": self.image, "packages": list(self.packages), "env": dict(self.env), "ports": list(self.ports)}
        return {name: value for name, value in plain.items() if value}


def _from_here(here: str, url: str) -> str:
    return os.path.join(here, url) if url.startswith(("./", "../")) else url


def _items(name: str, mapping: object) -> list[tuple[str, Any]]:
    if not isinstance(mapping, Mapping):
        raise InvalidRequest(f"must be a mapping of paths, not {type(mapping).__name__}", field=name)
    return list(mapping.items())


def _texts(name: str, values: object) -> list[str]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(item, str) for item in values):
        raise InvalidRequest("must be a list of texts", field=name)
    return list(values)


def provision(manifest: Manifest, directory: str) -> None:
    """Create the files of a manifest in a new directory. `ProvisionFailed` names the one that failed."""
    with Root(directory) as root:
        for repository in manifest.git:
            if parts := split_relative(repository.into):
                with _explain(repository.into):  # git would follow a link of an earlier repository
                    make_dir(root, parts, parents=True)
            _clone(repository, directory)
        for path in manifest.directories:
            with _explain(path):
                make_dir(root, split_relative(path), parents=True)
        for path, source in manifest.uploads.items():
            with _explain(path):
                upload_path(root, split_relative(path), Path(source), _UPLOADS)
        for path, content in manifest.files.items():
            with _explain(path):
                write_file(root, split_relative(path), content.encode() if isinstance(content, str) else content)


@contextmanager
def _explain(path: str) -> Iterator[None]:
    """Turn errors about a path into `ProvisionFailed`, except the host's, such as a full disk."""
    try:
        yield
    except SandboxError as error:
        if error.fault == "host":
            raise
        raise ProvisionFailed(path, str(error), error.hint or "correct the manifest") from error


def _clone(repository: GitRepo, directory: str) -> None:
    target = os.path.join(directory, *split_relative(repository.into))
    clone = ("clone", "--quiet", "--no-hardlinks", "--no-recurse-submodules", "--", repository.url, target)
    _git(repository, clone)
    if repository.ref is not None:
        _git(repository, ("-C", target, "checkout", "--quiet", repository.ref, "--"))


def _git(repository: GitRepo, words: tuple[str, ...]) -> None:
    suggestion = "check the address and the ref"
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_OTHER_REPOSITORY}
    try:
        ended = subprocess.run(
            ["git", *_GIT_OPTIONS, *words],
            env=inherited | _GIT_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
            umask=0o022,  # git could not enter directories that the host's umask takes from their owner
        )
    except FileNotFoundError:
        raise ProvisionFailed(repository.url, "git is not installed", "install git") from None
    except subprocess.TimeoutExpired:
        raise ProvisionFailed(repository.url, f"git timed out after {_GIT_SECONDS:g} s", suggestion) from None
    if ended.returncode != 0:
        reason = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["git failed"]
        raise ProvisionFailed(repository.url, reason[0][:300], suggestion)
