"""The application: all doors, and the life of what stands behind them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from warmcell.interfaces.serve import fusion, fusion_jupyter, mcp_door, page_files, piston, sign_in
from warmcell.interfaces.serve.doors import Doors, FromElsewhere, Unframed, not_found, wrong_method
from warmcell.interfaces.serve.e2b import control, envd, interpreter
from warmcell.interfaces.serve.exchange import BodyMemory
from warmcell.interfaces.serve.measured import Measured
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.v1 import (
    files,
    forks,
    native,
    openapi,
    ports,
    processes,
    sandboxes,
    sessions,
    terminals,
    tunnels,
    watches,
)
from warmcell.interfaces.serve.v1.activity import UnderWay
from warmcell.interfaces.serve.v1.watched import Watched


def make_app(service: Service) -> Starlette:
    """For any ASGI server, in one event loop. SIGHUP reloads where the server leaves it to us."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no such signal
            loop.add_signal_handler(signal.SIGHUP, service.reload)
        try:
            yield
        finally:
            await service.aclose()
            measured.close()
            under_way.close()
            watched.close()

    measured, under_way, watched = Measured(), UnderWay(), Watched()
    app = Starlette(
        middleware=[Middleware(Unframed), Middleware(FromElsewhere, settings=service.settings)],
        exception_handlers={404: not_found, 405: wrong_method},
    )
    app.router = Doors([*make_routes(measured, under_way, watched), *mcp_door.routes(service)], lifespan)
    app.state.service, app.state.bodies = service, BodyMemory()
    return app


def make_routes(measured: Measured, under_way: UnderWay, watched: Watched) -> list[BaseRoute]:
    rooms = (
        native,
        sandboxes,
        files,
        watches,
        processes,
        sessions,
        ports,
        forks,
        measured,
        under_way,
        watched,
        sign_in,
    )
    own = [route for room in rooms for route in room.routes()]
    return [
        *own,
        *terminals.routes(),
        *tunnels.routes(),
        *openapi.routes(own),
        *page_files.routes(),
        *fusion.routes(),
        *fusion_jupyter.routes(),
        *piston.routes(),
        *control.routes(),
        *envd.routes(),
        *interpreter.routes(),
    ]
