"""Routes: method and path to handler. The version in front of a path is checked and left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from warmcell.interfaces.docker.messages import Answer, DockerError, Handler, Request
from warmcell.interfaces.docker.unsupported import reason_against

NEWEST, OLDEST = (1, 47), (1, 24)
_VERSION = re.compile(r"/v(\d{1,3})\.(\d{1,3})(/.*)")
_VARIABLE = re.compile(r"\{(\w+)(\*?)\}")


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
