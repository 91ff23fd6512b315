"""Requests of Docker's API that this server refuses, and why. Clients show the reason to their users."""

from __future__ import annotations

import re

#: Method and path, and the reason. The first match counts.
_REASONS: tuple[tuple[str, str], ...] = (
    (r"POST /containers/[^/]+/(pause|unpause)", "pause and unpause are not supported: stop the container and start it"),
    (r"POST /images/.+/push", "push is not supported: export the image and push it with another tool"),
    (r"POST /auth", "login is not supported: credentials are sent with each pull"),
    (r"POST /commit", "commit is not supported: build an image from a Dockerfile, or copy the files out"),
    (r"POST /containers/[^/]+/update", "update is not supported: limits are set when a container is created"),
    (r"GET /containers/[^/]+/export", "export is not supported: copy the files out with GET /containers/ID/archive"),
    (r"GET /containers/[^/]+/changes", "changes (docker diff) are not supported: no list of changed files is kept"),
    (r"GET /containers/[^/]+/attach/ws", "attach over WebSocket is not supported: use POST /containers/ID/attach"),
    (
        r"\w+ /containers/[^/]+/checkpoints.*",
        "checkpoints are not supported: a container cannot be saved while it runs",
    ),
    (r"POST /networks/[^/]+/(dis)?connect", "networks cannot be changed: --docker-network says what containers reach"),
    (r"DELETE /networks/[^/]+", "networks cannot be removed: bridge and none always exist"),
    (r"PUT /volumes/[^/]+", "cluster volumes are not supported: a volume is a private directory"),
    (r"GET /images/search", "search is not supported: name the image, with its registry"),
    (r"POST /(session|grpc)", "BuildKit sessions are not supported: use the classic builder (DOCKER_BUILDKIT=0)"),
    (r"\w+ /distribution/.*", "manifests of registries cannot be queried: pull the image and inspect it"),
    (
        r"\w+ /(swarm|nodes|services|tasks|secrets|configs|plugins)(/.*)?",
        "swarm and plugins are not supported: this is Warmcell, which has containers, images and volumes only",
    ),
)
_COMPILED = tuple((re.compile(pattern), reason) for pattern, reason in _REASONS)


def reason_against(method: str, path: str) -> str | None:
    """Why this request is refused, or None if this page does not know it."""
    request = f"{method} {path}"
    return next((reason for pattern, reason in _COMPILED if pattern.fullmatch(request)), None)
