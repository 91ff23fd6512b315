"""Digests of short data without OpenSSL, which takes longer to load than all such digests of a command.

For long data `hashlib` is faster.
"""

from __future__ import annotations

from _operator import _compare_digest as is_same_text  # what `hmac` uses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256
    except ImportError:
        try:
            from _sha256 import sha256  # before Python 3.12
        except ImportError:  # an interpreter built without it
            from hashlib import sha256

__all__ = ["is_same_text", "keyed_sha256", "sha256"]

_BLOCK_BYTES = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


def keyed_sha256(key: bytes, message: bytes) -> str:
    """HMAC (RFC 2104), as `hmac.new(key, message, sha256).hexdigest()`."""
    block = (sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return sha256(block.translate(_OUTER) + sha256(block.translate(_INNER) + message).digest()).hexdigest()
