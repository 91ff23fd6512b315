"""`warmcell serve`: one process, or a front with several workers; with its log, telemetry and hold on `--state`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from starlette.middleware import Middleware

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.core.light import on_error
from warmcell.core.records import replace
from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.host_resources import connections_within_limit
from warmcell.interfaces.serve.listener import (
    listen,
    make_tls_context,
    prepare_socket,
    serve_on,
    take_passed_socket,
    url_of,
)
from warmcell.interfaces.serve.middleware import check_public_url, parse_networks
from warmcell.interfaces.serve.preloading import freeze_loaded_objects, load_modules
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings, check_cluster_settings, check_exposure
from warmcell.interfaces.serve.state_encryption import StateCipher
from warmcell.lifetime.held_directories import HeldDirectory, default_temporary_directory, hold
from warmcell.lifetime.own_modes import make_directories
from warmcell.observe.audit import AuditLog
from warmcell.workspace.untrusted_files import open_regular, parse_json
from warmcell.workspaces.snapshots.objects import sync_directory, sync_file

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
    allowed = connections_within_limit(settings.max_connections)
    if allowed < settings.max_connections:
        _log.warning("`ulimit -n` allows %d connections, not %d: raise it", allowed, settings.max_connections)
    settings = replace(settings, max_connections=allowed)
    with ExitStack() as cleanup:
        if settings.state is not None:
            cleanup.callback(hold_state(settings.state, settings.workers, settings.state_key).release)
        listening = cleanup.enter_context(listen(settings) if passed is None else prepare_socket(passed))
        if settings.audit is not None:
            cleanup.enter_context(AuditLog(settings.audit))
        started = partial(on_listening, url_of(listening, settings))
        if settings.ray is not None:
            from warmcell.interfaces.serve.cluster.front import join_cluster, serve_on_cluster

            serving = serve_on_cluster(settings, join_cluster(settings), listening, started)
        elif settings.workers == 1:
            serving = serve_app(Service(settings), listening, on_started=lambda server: started())
        else:
            from warmcell.interfaces.serve.front.front import check_start, serve_with_workers

            check_start(settings)
            serving = serve_with_workers(settings, listening, started)
        asyncio.run(serving)


def raise_descriptor_limit() -> None:
    """Raise the soft limit: a sandbox takes a dozen descriptors. It protects `select`, which is not used here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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


def start_telemetry() -> ExitStack:
    """Export spans and metrics by OTLP until the stack is closed, if one of the usual endpoint variables is set."""
    stack = ExitStack()
    endpoints = (os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT") for kind in ("", "TRACES_", "METRICS_"))
    if not any(endpoints) or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return stack
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from warmcell.observe.tracing import Tracing

        os.environ.setdefault("OTEL_SERVICE_NAME", "warmcell")
        tracers, meters = TracerProvider(), MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        stack.callback(tracers.shutdown)
        stack.callback(meters.shutdown)
        stack.callback(Tracing(tracers, meters).close)
    except (ImportError, BackendUnavailable):
        packages = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        _log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but nothing is exported: pip install %s", packages)
    return stack


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def configure_logging(level: str, form: str, prefix: str = "") -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter(f"%(levelname)s: {prefix}%(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":  # uvicorn reports every connection there
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


_OTHER_DIRECTORY = "or with another directory"


class _Layout(NamedTuple):
    """`layout.json`: which servers can use a state, checked before one starts."""

    version: int
    workers: int
    #: The fingerprint of the key.
    key: str | None


def hold_state(directory: str, workers: int, key: str | None = None) -> HeldDirectory:
    """Hold the state for this server, with the same number of workers and key as before. Raises `InvalidRequest`."""
    fingerprint = StateCipher(key).fingerprint
    # With a key, version 1 encrypted records and variables, but not files.
    wanted = _Layout(1 if fingerprint is None else 2, workers, fingerprint)
    try:
        make_directories(os.path.abspath(directory))
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            hint = f"start it as the directory's owner, with write permission, {_OTHER_DIRECTORY}"
            raise InvalidRequest(f"cannot write to {directory!r}: permission denied", field="state", hint=hint)
        if (held := hold(directory)) is None:
            raise InvalidRequest(f"{directory!r} is in use by another server or user", field="state")
        with on_error(held.release):
            if fingerprint is not None:
                _check_temporary_place(directory)
            _check_layout(directory, _read_layout(directory, wanted), wanted)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"cannot use {directory!r}: {error}", field="state") from None
    return held


def _check_layout(directory: str, written: _Layout, wanted: _Layout) -> None:
    if written.workers != wanted.workers:
        hint = f"start it with --workers {written.workers}, {_OTHER_DIRECTORY}"
        what = f"was written by a server with {written.workers} workers"
    elif written.key != wanted.key:
        how = "without a key" if written.key is None else "with another key" if wanted.key else "with a key"
        hint = f"start it with --state-key FILE or WARMCELL_STATE_KEY as before, {_OTHER_DIRECTORY}"
        what = f"was written {how}"
    elif written.version != wanted.version:
        hint = "start it with another directory, or with the version of Warmcell that wrote it"
        what = f"has the layout {written.version}, not {wanted.version}"
    else:
        return
    raise InvalidRequest(f"{directory!r} {what}", field="state", hint=hint)


def _check_temporary_place(directory: str) -> None:
    """Refuse a temporary directory below the state: files of running sandboxes are not encrypted."""
    state, place = os.path.realpath(directory), os.path.realpath(default_temporary_directory())
    if os.path.commonpath((state, place)) == state:
        reason = f"the temporary directory {place!r} is in {directory!r}, where everything is encrypted"
        raise InvalidRequest(reason, field="state", hint="set TMPDIR to a directory elsewhere")


def _read_layout(directory: str, wanted: _Layout) -> _Layout:
    """Read the layout of the state; a new state gets `wanted`."""
    path = os.path.join(directory, "layout.json")
    if not os.path.lexists(path):
        draft = f"{path}.new"
        with open(draft, "w", encoding="ascii") as file:
            json.dump(wanted._asdict(), file)
        sync_file(draft)
        os.replace(draft, path)
        sync_directory(directory)
    with open(open_regular(path, "state"), "rb") as file:
        found: Any = parse_json(file.read(4096))
    key = found.get("key") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not (key is None or isinstance(key, str)):
        raise ValueError("layout.json is damaged")
    return _Layout(int(found["version"]), int(found["workers"]), key)
