"""Bodies as a server sends them."""

from __future__ import annotations

import h11

from warmcell.net.connect.http_exchange import IncomingHttp


def open_exchange() -> IncomingHttp:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a.test")]))
    connection.send(h11.EndOfMessage())
    return IncomingHttp(connection)
