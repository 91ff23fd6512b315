"""EgressProxy: the only route out for a process guest with network access.

It serves a listening socket that was created in the guest's network namespace, where nothing else listens. It runs in
its own thread and event loop. Guests resolve names only through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterable
from contextvars import copy_context
from enum import IntEnum
from functools import cache, partial

from warmcell.core import events
from warmcell.core.errors import ExecutionFailed, FetchFailed
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.host_program import start_daemon
from warmcell.net.connect.admission import AuditSink, DenialSink, Gate, as_guest_error
from warmcell.net.connect.connection_log import ConnectionLog
from warmcell.net.connect.dial import READ_SIZE, Dial, Resolver, SocketStream, client_tls, dial
from warmcell.net.connect.limits import FairSlots, RateLimiter, connection_slots
from warmcell.net.optional_packages import need
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.proxy.forward_request import EgressContext, ProxyLimits, refusal
from warmcell.net.proxy.serve import Tunnel, serve_http
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import Host, HostError, parse_host
from warmcell.net.rules.rule_book import RuleBook, compile_rules
from warmcell.policy.model import NetworkRule

VERSION = 5


class Reply(IntEnum):
    """Reply codes of RFC 1928."""

    SUCCEEDED = 0
    FAILED = 1
    NOT_ALLOWED = 2
    HOST_UNREACHABLE = 4
    REFUSED = 5
    COMMAND_UNSUPPORTED = 7
    ADDRESS_UNSUPPORTED = 8


class SocksError(Exception):
    """Protocol error or unsupported request. The caller sends `reply`."""

    def __init__(self, reply: Reply, message: str) -> None:
        super().__init__(message)
        self.reply = reply


class SocksHandshake:
    """Reads the handshake and nothing after it."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream

    async def read_request(self) -> tuple[Host, int]:
        """Read the request's destination. The caller sends the reply."""
        _version, count = await self._take(2)
        if 0 not in await self._take(count):
            await self._stream.write(bytes([VERSION, 0xFF]))
            raise SocksError(Reply.NOT_ALLOWED, "only the method 'no authentication' is supported")
        await self._stream.write(bytes([VERSION, 0]))
        version, command, _reserved, kind = await self._take(4)
        if version != VERSION:
            raise SocksError(Reply.FAILED, "not SOCKS5")
        host = await self._host(kind)
        port = int.from_bytes(await self._take(2), "big")
        if command != 1:
            raise SocksError(Reply.COMMAND_UNSUPPORTED, "only CONNECT is supported, not BIND or UDP")
        if port == 0:
            raise SocksError(Reply.NOT_ALLOWED, "port 0")
        return host, port

    async def _host(self, kind: int) -> Host:
        if kind == 1 or kind == 4:
            address = ipaddress.ip_address(await self._take(4 if kind == 1 else 16))
            return Host(str(address), address)
        if kind != 3:
            raise SocksError(Reply.ADDRESS_UNSUPPORTED, f"unknown address type {kind}")
        name = await self._take((await self._take(1))[0])
        try:
            return parse_host(name.decode("ascii"))
        except (HostError, UnicodeError) as error:
            raise SocksError(Reply.NOT_ALLOWED, str(error)) from None

    async def reply(self, code: Reply) -> None:
        await self._stream.write(bytes([VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]))

    async def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await self._stream.read()
            if not more:
                raise SocksError(Reply.FAILED, "the client closed the connection")
            data += more
        self._stream.unread(data[count:])
        return data[:count]


Rules = RuleBook | FetchPolicy | Iterable[NetworkRule] | None

LISTEN_BACKLOG = 128
SECONDS_WITHOUT_ACCEPTING = 1.0
SECONDS_BETWEEN_REFUSALS = 0.02
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_SOCKS_REPLIES = {"refused": Reply.NOT_ALLOWED, "rate_limited": Reply.NOT_ALLOWED, "connect": Reply.REFUSED}


class EgressProxy:
    """Serves one guest. `start` returns when it is listening, `close` when its thread has ended; both are idempotent.

    The proxy owns the listener and closes it. `on_denial` and `audit` are called in the proxy's thread and must not
    block. `set_rules` may be called from any thread and takes effect with the next connection or HTTP request; open
    tunnels stay open.
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
        self._has_shared_limiter = limiter is not None
        self._gate = Gate(RuleBook(), limiter=limiter, resolver=resolver, audit=audit, on_denial=on_denial, log=log)
        self._egress = EgressContext(self._gate, self._limits, cache(lambda: ssl_context or client_tls()), dial)
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

    def set_rules(self, rules: Rules, limiter: RateLimiter | None = None) -> None:
        if limiter is not None:
            self._gate.limiter = limiter
        elif isinstance(rules, FetchPolicy) and not self._has_shared_limiter:
            self._gate.limiter = RateLimiter(rules.rate_limit)
        self._gate.rules = rules if isinstance(rules, RuleBook) else compile_rules(rules)

    def start(self) -> EgressProxy:
        if self._thread is None:
            # The context has the tenant and the run to which the proxy's events belong.
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
        self._slots.release()

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


LOOPBACK = "localhost,127.0.0.1,::1"


def proxy_environment(port: int, *, no_proxy: str = LOOPBACK, all_proxy_scheme: str = "http") -> dict[str, str]:
    """Proxy variables for curl, pip, npm, git, requests, node and others.

    Loopback inside the cage is the guest's own and needs no proxy. `ALL_PROXY` uses HTTP CONNECT unless `socks5h` is
    asked for: without an extra package, httpx (and most AI client libraries with it) refuses to start with a SOCKS
    URL. The proxy serves SOCKS5 on the same port either way.
    """
    url = f"http://127.0.0.1:{port}"
    all_url = f"{all_proxy_scheme}://127.0.0.1:{port}"
    plain = {"http_proxy": url, "https_proxy": url, "all_proxy": all_url, "no_proxy": no_proxy}
    upper = {name.upper(): value for name, value in plain.items()}
    return {
        **plain,
        **upper,
        "NODE_USE_ENV_PROXY": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "npm_config_proxy": url,
        "npm_config_https_proxy": url,
        "npm_config_noproxy": no_proxy,
        "npm_config_update_notifier": "false",
        "YARN_HTTP_PROXY": url,
        "YARN_HTTPS_PROXY": url,
        "CARGO_HTTP_PROXY": url,
        # Without a terminal a password prompt would hang.
        "GIT_TERMINAL_PROMPT": "0",
    }


def authority_environment(bundle_path: str, certificate_path: str) -> dict[str, str]:
    """Variables that add trust in the sandbox's CA. `bundle_path`: system roots and CA; `certificate_path`: CA only."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO")
    return {**dict.fromkeys(names, bundle_path), "NODE_EXTRA_CA_CERTS": certificate_path}
