"""EgressProxy: the only route out for a process guest with network access.

It serves a listening socket that was created in the guest's network namespace, where nothing else listens. It runs in
its own thread and event loop. Guests resolve names only through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterable
from contextvars import copy_context
from functools import partial

from warmcell.core import events
from warmcell.core.errors import ExecutionFailed, FetchFailed
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.host_program import start_daemon
from warmcell.net.connect.admission import AuditSink, DenialSink, Gate
from warmcell.net.connect.byte_streams import READ_SIZE, SocketStream
from warmcell.net.connect.connection_log import ConnectionLog
from warmcell.net.connect.dial import Dial, client_tls, dial
from warmcell.net.connect.fair_slots import FairSlots, connection_slots
from warmcell.net.connect.name_lookup import Resolver
from warmcell.net.connect.rate_limiter import RateLimiter
from warmcell.net.connect.unreachable import as_guest_error
from warmcell.net.optional_packages import need
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.proxy.forward_request import EgressContext, refusal
from warmcell.net.proxy.limits import ProxyLimits
from warmcell.net.proxy.serve_http import serve_http
from warmcell.net.proxy.socks5 import VERSION, Reply, SocksError, SocksHandshake
from warmcell.net.proxy.tunnel import Tunnel
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.rule_book import RuleBook, compile_rules
from warmcell.policy.model import NetworkRule

Rules = RuleBook | FetchPolicy | Iterable[NetworkRule] | None

LISTEN_BACKLOG = 128
SECONDS_WITHOUT_ACCEPTING = 1.0
SECONDS_BETWEEN_REFUSALS = 0.02
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_SOCKS_REPLIES = {"refused": Reply.NOT_ALLOWED, "rate_limited": Reply.NOT_ALLOWED, "connect": Reply.REFUSED}


class EgressProxy:
    """Serves one guest. `start` returns once it listens, `close` once its thread has ended; both are idempotent.

    The proxy owns the listener and closes it. `on_denial` and `audit` are called in the proxy's thread and must not
    block. `set_rules` may be called from any thread and takes effect with the next connection (for HTTP: the next
    request); open tunnels stay open.
    """

    def __init__(
        self,
        listener: socket.socket,
        rules: Rules,
        *,
        on_denial: DenialSink | None = None,
        audit: AuditSink | None = None,
        limits: ProxyLimits | None = None,
        authority: SandboxAuthority | None = None,
        resolver: Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
        dial: Dial = dial,
        limiter: RateLimiter | None = None,
        slots: FairSlots | None = None,
        log: ConnectionLog | None = None,
    ) -> None:
        need("h11")
        self._listener = listener
        self._slots = slots or connection_slots()
        self._limits = limits or ProxyLimits()
        self._authority = authority
        self._tls = ssl_context
        self._has_shared_limiter = limiter is not None
        self._gate = Gate(RuleBook(), limiter=limiter, resolver=resolver, audit=audit, on_denial=on_denial, log=log)
        self._egress = EgressContext(self._gate, self._limits, self._tls_context, dial)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.set_rules(rules)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def set_rules(self, rules: Rules) -> None:
        if isinstance(rules, FetchPolicy) and not self._has_shared_limiter:
            self._gate.limiter = RateLimiter(rules.rate_limit)
        self._gate.rules = rules if isinstance(rules, RuleBook) else compile_rules(rules)

    def start(self) -> EgressProxy:
        if self._thread is None:
            # Its events belong to the tenant and the run that it was started for.
            context = copy_context()
            self._thread = start_daemon(lambda: context.run(self._run), name="warmcell egress proxy")
            self._ready.wait()
            if isinstance(self._failure, OSError):
                raise host_failure(self._failure, "start the egress proxy") from self._failure
            if self._failure is not None:
                raise ExecutionFailed(f"could not start the egress proxy: {self._failure}")
        return self

    def close(self) -> None:
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._listener.close()

    def __enter__(self) -> EgressProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._listener.setblocking(False)
        self._listener.listen(LISTEN_BACKLOG)
        self._resume_accepting()
        self._ready.set()
        await self._stop.wait()
        self._loop.remove_reader(self._listener)
        for task in tuple(self._serving):
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def _resume_accepting(self) -> None:
        if self._loop is not None and self._stop is not None and not self._stop.is_set():
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # Not `asyncio.start_server`: at shutdown it leaks a connection that was accepted but not yet reported.
        assert self._loop is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # out of descriptors, most likely
            return self._pause_accepting(SECONDS_WITHOUT_ACCEPTING)
        connection.setblocking(False)
        held = len(self._serving)
        if held >= self._limits.connections or not self._slots.take(held):
            return self._reject(connection)
        task = self._loop.create_task(self._serve_connection(connection))
        self._serving.add(task)
        task.add_done_callback(partial(self._end, connection))

    def _end(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        # A done callback, because a task that is cancelled before its first step never runs its `finally`.
        self._serving.discard(task)
        connection.close()
        self._slots.give_back()

    def _reject(self, connection: socket.socket) -> None:
        """Refuse and close at once, so that a flood of connections costs no descriptors and little time."""
        with connection, contextlib.suppress(OSError):
            connection.send(refusal(FetchFailed("too many connections at once", reason="rate_limited")))
        self._gate.refuse_malformed("too many connections at once", "proxy")
        self._pause_accepting(SECONDS_BETWEEN_REFUSALS)

    def _pause_accepting(self, seconds: float) -> None:
        """Stop polling the listener for a while: it stays readable, and the loop would spin on it."""
        assert self._loop is not None
        self._loop.remove_reader(self._listener)
        self._loop.call_later(seconds, self._resume_accepting)

    async def _serve_connection(self, connection: socket.socket) -> None:
        stream = SocketStream(*await asyncio.open_connection(sock=connection, limit=READ_SIZE))
        # An error on one connection closes only that connection.
        try:
            with contextlib.suppress(OSError, FetchFailed):
                # A guest that does not read its response must not hold its slot forever.
                async with asyncio.timeout(self._limits.total_seconds):
                    await self._serve_guest(stream)
                async with asyncio.timeout(self._limits.head_seconds):
                    await stream.aclose()
        finally:
            stream.close()
            if events.listeners:
                events.emit("network.closed", "", {"sent": stream.bytes_read, "received": stream.bytes_written})

    async def _serve_guest(self, stream: SocketStream) -> None:
        async with asyncio.timeout(self._limits.head_seconds):
            first = await stream.read()
        stream.unread(first)
        if first[:1] == bytes([VERSION]):
            await self._serve_socks(stream)
        elif first:
            await self._serve_proxy_http(stream)

    async def _serve_proxy_http(self, stream: SocketStream) -> None:
        request = await serve_http(stream, self._egress, "http")
        if request is None:
            return
        stream.unread(request.early)
        tunnel = Tunnel(stream, request.host, request.port, "connect", self._egress, self._authority)
        try:
            await tunnel.run(lambda: stream.write(ESTABLISHED))
        except FetchFailed as error:
            await stream.write(refusal(error))

    async def _serve_socks(self, stream: SocketStream) -> None:
        handshake = SocksHandshake(stream)
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                host, port = await handshake.read_request()
            tunnel = Tunnel(stream, host, port, "socks5", self._egress, self._authority)
            await tunnel.run(lambda: handshake.reply(Reply.SUCCEEDED))
        except SocksError as error:
            self._gate.refuse_malformed(str(error), "socks5")
            await handshake.reply(error.reply)
        except FetchFailed as error:
            await handshake.reply(_SOCKS_REPLIES.get(as_guest_error(error).reason, Reply.HOST_UNREACHABLE))

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = client_tls()
        return self._tls
