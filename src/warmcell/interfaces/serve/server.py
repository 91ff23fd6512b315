"""`warmcell serve`: one process, or a front with several workers."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from starlette.middleware import Middleware

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import replace
from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.garbage_collection import freeze_loaded_objects
from warmcell.interfaces.serve.host_resources import connections_within_limit
from warmcell.interfaces.serve.listener import listen, make_tls_context, prepare_socket, serve_on, url_of
from warmcell.interfaces.serve.passed_socket import take_passed_socket
from warmcell.interfaces.serve.preloading import load_modules
from warmcell.interfaces.serve.proxy_headers import check_public_url, parse_networks
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings, check_cluster_settings, check_exposure
from warmcell.interfaces.serve.state_layout import hold_state
from warmcell.interfaces.serve.telemetry import start_telemetry
from warmcell.observe.audit import AuditLog

_log = logging.getLogger("warmcell.serve")
_MAX_DESCRIPTORS = 1 << 16


def serve(settings: Settings, on_listening: Callable[[str], object]) -> None:
    """Block until SIGTERM or SIGINT. Work in progress may then continue for `drain_timeout`.

    `on_listening` is called with the URL once requests and those signals are handled. A socket that a service manager
    passed is used instead of the host and port of the settings.
    """
    passed = take_passed_socket()
    if passed is not None:
        host, port = passed.getsockname()[:2]
        settings = replace(settings, host=host, port=port)
    check_exposure(settings)
    check_public_url(settings.public_url)
    parse_networks(settings.trusted_proxies)
    if settings.tls_cert is not None:
        make_tls_context(settings)
    elif settings.tls_key is not None:
        raise InvalidRequest("--tls-key needs --tls-cert")
    check_cluster_settings(settings)
    raise_descriptor_limit()
    settings = replace(settings, max_connections=_connections_to_allow(settings))
    state = None if settings.state is None else hold_state(settings.state, settings.workers, settings.state_key)
    listening = listen(settings) if passed is None else prepare_socket(passed)
    audit = None if settings.audit is None else AuditLog(settings.audit)
    try:
        started = partial(on_listening, url_of(listening, settings))
        if settings.ray is not None:
            serving = _serve_on_cluster(settings, listening, started)
        elif settings.workers == 1:
            serving = serve_app(Service(settings), listening, on_started=lambda server: started())
        else:
            serving = _serve_with_workers(settings, listening, started)
        asyncio.run(serving)
    finally:
        listening.close()
        if state is not None:
            state.let_go()
        if audit is not None:
            audit.close()


def raise_descriptor_limit() -> None:
    """A sandbox takes a dozen descriptors. The usual soft limit protects `select`, which the server does not use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _connections_to_allow(settings: Settings) -> int:
    allowed = connections_within_limit(settings.max_connections)
    if allowed < settings.max_connections:
        _log.warning("at most %d connections, not %d: raise `ulimit -n`", allowed, settings.max_connections)
    return allowed


def _serve_with_workers(
    settings: Settings, listening: socket.socket, started: Callable[[], object]
) -> Coroutine[Any, Any, None]:
    from warmcell.interfaces.serve.front.front import check_start, serve_with_workers

    check_start(settings)
    return serve_with_workers(settings, listening, started)


def _serve_on_cluster(
    settings: Settings, listening: socket.socket, started: Callable[[], object]
) -> Coroutine[Any, Any, None]:
    from warmcell.interfaces.serve.cluster.front import join_cluster, serve_on_cluster

    return serve_on_cluster(settings, join_cluster(settings), listening, started)


async def serve_app(
    service: Service, listening: socket.socket, inner: Sequence[Middleware] = (), **options: Any
) -> None:
    """`inner` is for `make_app`, `options` for `serve_on`."""
    deadline, telemetry = asyncio.ensure_future(_close_after_drain(service)), start_telemetry()
    app = make_app(service, inner)
    load_modules()
    freeze_loaded_objects()
    try:
        await serve_on(listening, app, service.settings, service, **options)
    finally:
        deadline.cancel()
        await asyncio.to_thread(telemetry.close)  # it sends what it has


async def _close_after_drain(service: Service) -> None:
    """End what is still running after `drain_timeout`, so that clients get a response: uvicorn would cut them off."""
    await service.draining.wait()
    await asyncio.sleep(service.settings.drain_timeout)
    await service.aclose()
