"""Names to addresses, once. What comes out of here has been judged and is exactly what is dialled."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from weakref import WeakKeyDictionary

from warmcell.core.errors import FetchFailed
from warmcell.lifetime.ownership import own
from warmcell.net.connect.fair_slots import FairSlots
from warmcell.net.rules.hosts import Host, IPAddress

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives every address of a name, as text. Called once for each connection; raises `OSError` when there is none."""

MAX_ADDRESSES = 32
LOOKUP_SECONDS = 10.0
MAX_LOOKUPS = 64

_slots = FairSlots(MAX_LOOKUPS)


class _Askers:
    """How many lookups each event loop has under way: every proxy, and so every guest, has a loop of its own.

    A lookup holds its place until the C library is done with it, also when nobody waits for the answer any more.
    """

    def __init__(self) -> None:
        self._under_way: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
        own(self)
        self.abandon()

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._under_way.clear()

    def begin(self, loop: asyncio.AbstractEventLoop) -> bool:
        with self._lock:
            held = self._under_way.get(loop, 0)
            if not _slots.take(held):
                return False
            self._under_way[loop] = held + 1
            return True

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._under_way[loop] = max(0, self._under_way.get(loop, 0) - 1)
        _slots.give_back()


_askers = _Askers()


async def system_resolver(name: str, port: int) -> Sequence[str]:
    """`getaddrinfo` in a thread of its own: a stuck lookup must hold up neither the loop nor the end of the program."""
    loop = asyncio.get_running_loop()
    if not _askers.begin(loop):
        raise OSError("too many name lookups are already under way")
    answer: asyncio.Future[list[str]] = loop.create_future()

    def look_up() -> None:
        try:
            records = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            settle(answer.set_result, [str(record[4][0]) for record in records])
        except (OSError, UnicodeError) as error:
            settle(answer.set_exception, error)
        finally:
            _askers.end(loop)

    def settle(put: Callable[..., None], value: object) -> None:
        # A RuntimeError says that the loop is gone, and with it everyone who wanted to know.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if answer.done() else put(value))

    try:
        threading.Thread(target=look_up, name=f"resolve {name[:40]}", daemon=True).start()
    except RuntimeError as error:  # no more threads to be had
        _askers.end(loop)
        raise OSError(str(error)) from None
    async with asyncio.timeout(LOOKUP_SECONDS):
        return await answer


async def addresses_of(host: Host, port: int, resolver: Resolver) -> tuple[IPAddress, ...]:
    """Every address of the host, in the resolver's order; a literal is its own address and asks nobody."""
    if host.address is not None:
        return (host.address,)
    try:
        records = await resolver(host.name, port)
        found = tuple(dict.fromkeys(_address(record) for record in records))
    except (OSError, UnicodeError) as error:
        # `TimeoutError` is an `OSError`: the lookup's own deadline ends up here, the fetch's deadline does not.
        raise FetchFailed(f"the name {host} could not be resolved: {str(error) or 'timed out'}", reason="dns") from None
    except ValueError:
        raise FetchFailed(f"the name {host} resolved to something that is no IP address", reason="dns") from None
    if not found:
        raise FetchFailed(f"the name {host} has no address", reason="dns")
    if len(found) > MAX_ADDRESSES:
        raise FetchFailed(f"the name {host} has more than {MAX_ADDRESSES} addresses", reason="dns")
    return found


def _address(text: str) -> IPAddress:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        return ipaddress.IPv6Address(int(address))
    return address
