"""Which worker answers a request. Pure: the front and all workers decide alike."""

from __future__ import annotations

import hashlib
import re

from starlette.requests import HTTPConnection
from starlette.routing import Match
from starlette.types import Scope

from warmcell.interfaces.serve.app import Observers, make_routes
from warmcell.interfaces.serve.authentication import find_token
from warmcell.interfaces.serve.e2b.volume_routes import CONTENT as VOLUME_CONTENT
from warmcell.interfaces.serve.middleware import path_below, path_prefix
from warmcell.interfaces.serve.routing import AuthRoute
from warmcell.interfaces.serve.sandbox_registry import worker_of_id
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.v1.runs import BACKGROUND_RUNS

#: In place of a worker's number: every worker can answer, or only the front, which asks several of them.
ANY_WORKER, THE_FRONT = -1, -2
#: Paths of requests about several sandboxes, and of those that may name a snapshot.
OWN_SANDBOXES, SNAPSHOTS = "/v1/sandboxes", "/snapshots"
_COLLECTIONS = (OWN_SANDBOXES, "/sandboxes", "/v2/sandboxes", SNAPSHOTS)
TEMPLATE_NAMES = "/templates/"
_ONE_SANDBOX = re.compile(r"(?:/v[12])?/sandboxes/([^/]+)")


class Placement:
    """`routes` has the same order in all processes."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._prefix = settings, path_prefix(settings.public_url)
        observers = Observers()
        observers.close()
        #: The workers' routes, to know the scope of each and how it renders errors.
        self.routes = [route for route in make_routes(observers) if isinstance(route, AuthRoute)]
        #: Routes without parameters, by method and path: there are a hundred routes to search.
        self._known: dict[tuple[str, str], AuthRoute] = {}

    def find_route(self, scope: Scope) -> AuthRoute | None:
        key = scope["method"], scope["path"]
        found = self._known.get(key)
        if found is None:
            found = next((route for route in self.routes if route.matches(scope)[0] is Match.FULL), None)
            if found is not None and found.matches_only(key[1]):
                self._known[key] = found
        return found

    def choose(self, request: HTTPConnection, route: AuthRoute | None) -> int:
        scope, path = "" if route is None else route.description["scope"], request.scope["path"]
        is_run = scope == "run" and not path.startswith(BACKGROUND_RUNS)  # which last
        if is_run or path in ("/healthz", "/readyz"):
            return ANY_WORKER
        identity = request.headers.get("e2b-sandbox-id")
        if is_signed_link(request) or scope in ("metrics", "operate"):
            return THE_FRONT
        if path.startswith(VOLUME_CONTENT):  # with the token of the volume
            identity = path.removeprefix(VOLUME_CONTENT).partition("/")[0]
        # On other routes a client could choose the worker, and get its quota once from each.
        if identity is not None and route is not None and route.has_own_secret:
            return self._worker_of(identity)
        if self._settings.tokens is None and route is not None:
            return self._choose_for_only_tenant(request)
        return self.home(request)

    def _choose_for_only_tenant(self, request: HTTPConnection) -> int:
        """Sandboxes are in all workers, see `Spread`; everything else that lasts is in one."""
        method, path = request.scope["method"], request.scope["path"]
        if (one := _ONE_SANDBOX.match(path)) is not None:
            return self._worker_of(one[1])
        is_template = path.startswith(TEMPLATE_NAMES) and path != f"{TEMPLATE_NAMES}tags"
        is_look_up = path.startswith(f"{TEMPLATE_NAMES}aliases/")
        may_name_snapshot = is_look_up or (is_template and method == "DELETE")
        return THE_FRONT if path in _COLLECTIONS or may_name_snapshot else self.home(request)

    def _worker_of(self, identity: str) -> int:
        number = worker_of_id(identity)
        return number if number is not None and number < self._settings.workers else 0

    def choose_for_socket(self, request: HTTPConnection) -> int:
        if self._settings.tokens is not None:
            return self.home(request)
        one = _ONE_SANDBOX.match(self.path_of_socket(request))
        return ANY_WORKER if one is None else self._worker_of(one[1])

    def path_of_socket(self, request: HTTPConnection) -> str:
        """The path of a WebSocket, whose head no middleware has seen yet, without the prefix of `--public-url`."""
        return path_below(self._prefix, request.scope["path"])

    def home(self, request: HTTPConnection) -> int:
        """The worker with everything of this tenant; without a token file, with all but the sandboxes."""
        token = "" if self._settings.tokens is None else find_token(request) or ""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8]) % self._settings.workers


def is_signed_link(request: HTTPConnection) -> bool:
    """Whether the request uses a signed URL, which names neither sandbox nor tenant."""
    names_sandbox = "e2b-sandbox-id" in request.headers
    return request.scope["path"] == "/files" and not names_sandbox and "signature" in request.query_params
