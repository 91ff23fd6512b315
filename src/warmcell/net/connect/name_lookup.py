"""Name lookup, once per connection: the addresses returned here are checked and then dialled."""

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
"""Returns every address of a name as text. Called once per connection; raises `OSError` if the lookup fails."""

MAX_ADDRESSES = 32
LOOKUP_SECONDS = 10.0
MAX_LOOKUPS = 64

_slots = FairSlots(MAX_LOOKUPS)


class _LookupCounts:
    """Lookups in progress per event loop. Each proxy, and so each guest, has its own loop.

    A lookup keeps its slot until getaddrinfo returns, even if the caller has stopped waiting.
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


_lookups = _LookupCounts()


async def system_resolver(name: str, port: int) -> Sequence[str]:
    """Run `getaddrinfo` in a daemon thread, so that a stuck lookup blocks neither the loop nor interpreter exit."""
    loop = asyncio.get_running_loop()
    if not _lookups.begin(loop):
        raise OSError("too many name lookups in progress")
    answer: asyncio.Future[list[str]] = loop.create_future()

    def look_up() -> None:
        try:
            records = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            settle(answer.set_result, [str(record[4][0]) for record in records])
        except (OSError, UnicodeError) as error:
            settle(answer.set_exception, error)
        finally:
            _lookups.end(loop)

    def settle(put: Callable[..., None], value: object) -> None:
        # RuntimeError: the loop is closed, so no task is waiting for the result.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if answer.done() else put(value))

    try:
        threading.Thread(target=look_up, name=f"resolve {name[:40]}", daemon=True).start()
    except RuntimeError as error:  # can't start new thread
        _lookups.end(loop)
        raise OSError(str(error)) from None
    async with asyncio.timeout(LOOKUP_SECONDS):
        return await answer


async def resolve_host(host: Host, port: int, resolver: Resolver) -> tuple[IPAddress, ...]:
    """Every address of the host, in the resolver's order. A literal needs no lookup."""
    if host.address is not None:
        return (host.address,)
    try:
        records = await resolver(host.name, port)
        found = tuple(dict.fromkeys(_address(record) for record in records))
    except (OSError, UnicodeError) as error:
        # `TimeoutError` is an `OSError`. Only the lookup's deadline arrives here; the fetch's raises CancelledError.
        raise FetchFailed(f"could not resolve {host}: {str(error) or 'timed out'}", reason="dns") from None
    except ValueError:
        raise FetchFailed(
            f"could not resolve {host}: the resolver returned an invalid IP address", reason="dns"
        ) from None
    if not found:
        raise FetchFailed(f"{host} has no address", reason="dns")
    if len(found) > MAX_ADDRESSES:
        raise FetchFailed(f"{host} has more than {MAX_ADDRESSES} addresses", reason="dns")
    return found


def _address(text: str) -> IPAddress:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        return ipaddress.IPv6Address(int(address))
    return address
