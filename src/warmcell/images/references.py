"""References to images: `debian:12`, `localhost:5000/team/app@sha256:...`. Pure."""

from __future__ import annotations

import re

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass

DOCKER_HUB = "docker.io"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?|\[[0-9a-fA-F:]+\](?::[0-9]{1,5})?)")
_MAX_NAME = 200
#: What `parse_reference` and `is_digest` accept, for schemas. Only a first part with "." or ":" is a host.
REFERENCE_PATTERN = (
    rf"^(?:{_DIGEST.pattern}|(?=[^@]{{1,{_MAX_NAME}}}(?:@|$))"
    rf"(?:(?=[^/]*[.:][^/]*/){_HOST.pattern}/|(?![^/]*[.:][^/]*/)){_PATH.pattern}(?:/{_PATH.pattern})*"
    rf"(?::{_TAG.pattern})?(?:@{_DIGEST.pattern})?)$"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """Where an image is: registry, repository, and a tag or a digest."""

    registry: str
    repository: str
    tag: str
    digest: str = ""

    @property
    def name(self) -> str:
        """The name as people write it: without Docker Hub's host and its `library/`."""
        where = self.repository if self.registry == DOCKER_HUB else f"{self.registry}/{self.repository}"
        if self.registry == DOCKER_HUB:
            where = where.removeprefix("library/")
        return f"{where}@{self.digest}" if self.digest else f"{where}:{self.tag}"


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def parse_reference(text: str) -> Reference:
    """Parse a reference as Docker does. Raises `InvalidRequest`."""
    if not isinstance(text, str):
        raise _not_a_reference(text)
    rest, at, digest = text.partition("@")
    if len(rest) > _MAX_NAME:
        raise _not_a_reference(text)
    host, slash, path = rest.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, path = DOCKER_HUB, rest
    path, colon, tag = path.partition(":")
    if host in (DOCKER_HUB, "index.docker.io"):
        host, path = DOCKER_HUB, path if "/" in path else f"library/{path}"
    tag = tag if colon else "latest"
    is_path = all(_PATH.fullmatch(part) for part in path.split("/"))
    if not is_path or not _HOST.fullmatch(host) or not _TAG.fullmatch(tag) or (at and not is_digest(digest)):
        raise _not_a_reference(text)
    return Reference(host, path, tag, digest)


def _not_a_reference(text: object) -> InvalidRequest:
    hint = "write it as NAME[:TAG] or HOST/NAME[:TAG], in lower case"
    return InvalidRequest(f"{str(text)[:300]!r} is not an image reference", field="image", hint=hint)
