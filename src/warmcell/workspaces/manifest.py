"""Manifest: what a new workspace has in it, and the settings of its sandboxes. In Python or TOML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass, field
from warmcell.core.types import check_env
from warmcell.policy.codec import RecordSchema, from_file
from warmcell.workspace.names import split_relative


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
