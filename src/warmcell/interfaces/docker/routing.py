"""Routes: method and path to handler. The version in front of a path is checked and left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from warmcell.interfaces.docker.messages import Answer, DockerError, Handler, Request

NEWEST, OLDEST = (1, 47), (1, 24)
_VERSION = re.compile(r"/v(\d{1,3})\.(\d{1,3})(/.*)")
_VARIABLE = re.compile(r"\{(\w+)(\*?)\}")
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


@dataclass(frozen=True)
class Route:
    """`{name}` is one part of the path, `{name*}` several: names of images have slashes."""

    method: str
    path: str
    handler: Handler
    #: The handler reads the body itself, as it arrives.
    is_streamed: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(_VARIABLE.sub(lambda found: f"(?P<{found[1]}>{'.+' if found[2] else '[^/]+'})", self.path))


class Router:
    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(route, route.pattern) for route in routes]

    def is_streamed(self, request: Request) -> bool:
        try:
            route, _ = self._find(request)
        except DockerError:
            return True  # its body is not read
        return route.is_streamed

    async def answer(self, request: Request) -> Answer:
        route, names = self._find(request)
        request.names = names
        return await route.handler(request)

    def _find(self, request: Request) -> tuple[Route, dict[str, str]]:
        path, methods = _without_version(request.path), []
        for route, pattern in self._routes:
            found = pattern.fullmatch(path)
            if found and request.method == route.method:
                return route, found.groupdict()
            if found:
                methods.append(route.method)
        reason = reason_against(request.method, path)
        if reason is not None:
            raise DockerError(501, reason)
        if methods:
            raise DockerError(405, f"method not allowed: {path[:200]} has {', '.join(methods)}")
        # Not 404: clients take that for a missing container or image.
        raise DockerError(501, f"Warmcell does not implement {request.method[:20]} {path[:200]} of Docker's API")


def _without_version(path: str) -> str:
    found = _VERSION.fullmatch(path)
    if not found:
        return path
    version = int(found[1]), int(found[2])
    if version > NEWEST or version < OLDEST:
        text, side = f"{version[0]}.{version[1]}", "new" if version > NEWEST else "old"
        limit = "Maximum" if version > NEWEST else "Minimum"
        nearest = NEWEST if version > NEWEST else OLDEST
        message = f"client version {text} is too {side}. {limit} supported API version is {nearest[0]}.{nearest[1]}"
        raise DockerError(400, message)
    return found[3]
