"""ClientHellos as OpenSSL makes them, and the same cut into other records."""

from __future__ import annotations

import ssl

import pytest


def real_hello(name: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = version
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def records(message: bytes, size: int) -> bytes:
    """The same handshake message, cut into TLS records of `size` bytes."""
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)
