"""The WebSocket protocol class. Imported only where the package `wsproto` is installed."""

from __future__ import annotations

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from warmcell.interfaces.serve.http_protocol import StallGuard


class DrainingWebSocketProtocol(StallGuard, WSProtocol):
    """Do not cut open WebSockets at shutdown: runs may finish, and handlers of endless streams end by themselves."""

    def shutdown(self) -> None:
        if not self.handshake_complete:
            super().shutdown()
