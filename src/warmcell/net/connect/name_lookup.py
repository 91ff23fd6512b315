"""Names to addresses, once. What comes out of here has been judged and is exactly what is dialled."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

from warmcell.core.errors import FetchFailed
from warmcell.net.rules.hosts import Host, IPAddress

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives every address of a name, as text. Called once for each connection; raises `OSError` when there is none."""

MAX_ADDRESSES = 32
LOOKUP_SECONDS = 10.0
MAX_LOOKUPS = 64

_lookups = threading.BoundedSemaphore(MAX_LOOKUPS)


async def system_resolver(name: str, port: int) -> Sequence[str]:
    """`getaddrinfo` in a thread of its own: a stuck lookup must hold up neither the loop nor the end of the program."""
    if not _lookups.acquire(blocking=False):
        raise OSError(f"{MAX_LOOKUPS} name lookups are already under way")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def look_up() -> None:
        try:
            records = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            settle(answer.set_result, [str(record[4][0]) for record in records])
        except (OSError, UnicodeError) as error:
            settle(answer.set_exception, error)
        finally:
            _lookups.release()

    def settle(put: Callable[..., None], value: object) -> None:
        # A RuntimeError says that the loop is gone, and with it everyone who wanted to know.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if answer.done() else put(value))

    threading.Thread(target=look_up, name=f"resolve {name[:40]}", daemon=True).start()
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
