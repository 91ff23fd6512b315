"""The ASGI application: all routes, and the lifespan of the service behind them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from warmcell.interfaces.serve import fusion, mcp_route, page_files, piston, sign_in
from warmcell.interfaces.serve.e2b import control, creation, envd, interpreter, volume_routes
from warmcell.interfaces.serve.e2b.snapshots import snapshots_of
from warmcell.interfaces.serve.e2b.volumes import volumes_of
from warmcell.interfaces.serve.listener import reload_on_change
from warmcell.interfaces.serve.middleware import OriginGuard, ProxyHeaders, RequestLog, SecurityHeaders
from warmcell.interfaces.serve.requests import BodyMemory
from warmcell.interfaces.serve.routing import AppRouter, AuthRoute, render_404, render_405, route
from warmcell.interfaces.serve.saved_sandboxes import restore_sandboxes, save_all
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.usage import UsageLedger, measure_regularly
from warmcell.interfaces.serve.v1 import files, openapi, processes, runs, sandboxes, sessions, terminals
from warmcell.interfaces.serve.v1.activity import ActivityRoute, HistoryRoute
from warmcell.lifetime.threads import cancel_and_wait, in_thread
from warmcell.observe.metrics import METRICS_HEADERS, Metrics


class MetricsRoute:
    """Collects events until `close`."""

    def __init__(self, *, by_tenant: bool) -> None:
        self._metrics = Metrics(by_tenant=by_tenant)
        self.close = self._metrics.close

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """Runs by language, outcome and fault, waiting, time and memory, for Prometheus."""
        return Response(self._metrics.text(), headers=METRICS_HEADERS)

    def routes(self) -> list[AuthRoute]:
        return [route("GET", "/metrics", self, "metrics", answers=("text",))]


class Observers:
    """The routes that collect events of all runs, from their creation until `close`."""

    def __init__(self, usage: str | None = None, *, by_tenant: bool = False) -> None:
        """`usage`: the file of usage figures. `by_tenant`: metrics have the tenant as a label."""
        self.usage = UsageLedger(usage)
        self.all = (MetricsRoute(by_tenant=by_tenant), ActivityRoute(), HistoryRoute(), self.usage)

    def close(self) -> None:
        for observer in self.all:
            observer.close()


def make_app(service: Service, inner: Sequence[Middleware] = ()) -> Starlette:
    """Make the application, for any ASGI server with one event loop. Handles SIGHUP (reload) where it can.

    `inner` is the middleware between the guards and the routes.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no such signal
            loop.add_signal_handler(signal.SIGHUP, service.reload)
        # A worker is reloaded by its front.
        watched = None if service.is_worker else service.settings.tokens
        tasks = [asyncio.ensure_future(measure_regularly(service.sandboxes, observers.usage))]
        if watched:
            tasks.append(asyncio.ensure_future(reload_on_change(watched, service.reload, service.token_file)))
        await restore_all(service)
        try:
            yield
        finally:
            await cancel_and_wait(*tasks)
            await service.aclose()
            observers.close()

    observers = Observers(service.settings.usage, by_tenant=service.settings.metrics_by_tenant)
    app = Starlette(
        middleware=[*make_guards(service.settings), *inner], exception_handlers={404: render_404, 405: render_405}
    )
    app.router = AppRouter([*make_routes(observers), *mcp_route.routes(service)], lifespan)
    app.state.service, app.state.bodies = service, BodyMemory()
    return app


def make_guards(settings: Settings) -> list[Middleware]:
    """The middleware of an application, the outermost first."""
    return [
        Middleware(ProxyHeaders, settings=settings),
        Middleware(RequestLog),
        Middleware(SecurityHeaders),
        Middleware(OriginGuard, settings=settings),
    ]


def make_own_routes(observers: Observers) -> list[AuthRoute]:
    """The routes of our own API, which `/openapi.json` describes."""
    own_modules = (runs, sandboxes, files, processes, sessions, sign_in, *observers.all)
    return [route for module in own_modules for route in module.routes()]


def make_routes(observers: Observers) -> list[BaseRoute]:
    own = make_own_routes(observers)
    others = (terminals, page_files, fusion, piston, control, envd, interpreter, volume_routes)
    return [*own, *openapi.routes(own), *(route for module in others for route in module.routes())]


async def restore_all(service: Service) -> None:
    """Restore what the previous server with this `--state` had, before the first request. At the end, save all."""
    if service.saved is None:
        return
    service.on_stop.append(lambda: save_all(service))  # first: a stop may come before all are restored
    await in_thread(snapshots_of(service).load)
    await in_thread(volumes_of(service).load)
    with service.resources.suspend():
        await restore_sandboxes(service, {"e2b": creation.restore_sandbox, "v1": sandboxes.restore_sandbox})
