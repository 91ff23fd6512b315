"""WebSockets on the wire. Imported where the package `wsproto` is there."""

from __future__ import annotations

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol


class PatientSocketProtocol(WSProtocol):
    """Is not cut when the server is to end: what runs is finished, and what stands for ever ends by itself."""

    def shutdown(self) -> None:
        if not self.handshake_complete:
            super().shutdown()
