"""Archives for COPY steps: signed URLs to upload them to, and the directories that they are unpacked into.

An archive may contain anything. It is unpacked as a layer of an image is: no name and no link leads out.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import quote, urlencode

from starlette.requests import ClientDisconnect

from warmcell.core.types import MIB
from warmcell.images.decompress import LayerReader, decompress
from warmcell.images.limits import Budget, ImageLimits
from warmcell.images.unpack import Unpacker
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError

UPLOAD_SECONDS = 900.0
_URL_SECONDS = 3600
_HASH = re.compile(r"[0-9A-Za-z]{16,128}")
_KEY_BYTES = 32


def check_hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise HttpError(400, "the hash of the files must be 16 to 128 letters and digits")
    return text


class Uploads:
    """Those of all tenants; `place` is the directory of templates."""

    def __init__(self, place: str) -> None:
        self._place = os.path.join(place, "templates")

    def path_of(self, tenant: str, digest: str) -> str:
        return os.path.join(self._place, quote(tenant, safe=""), "files", check_hash(digest))

    def sign(self, tenant: str, digest: str, most: int) -> str:
        """Path and query of a URL that accepts one archive of at most `most` bytes for an hour."""
        expires = str(int(time.time()) + _URL_SECONDS)
        fields = {"expires": expires, "most": str(most)}
        signature = self._signature(tenant, digest, *fields.values())
        query = urlencode(fields | {"signature": signature})
        return f"/templates/uploads/{quote(tenant, safe='')}/{digest}?{query}"

    def check(self, tenant: str, digest: str, expires: str, most: str, signature: str) -> int:
        """The most bytes that it may have. Raises `HttpError` 403."""
        expected = self._signature(tenant, check_hash(digest), expires, most)
        if not hmac.compare_digest(signature.encode(), expected.encode()) or int(expires) < time.time():
            raise HttpError(403, "the upload URL is invalid or has expired")
        return int(most)

    def _signature(self, *fields: str) -> str:
        return hmac.new(self._key(), "\n".join(fields).encode(), hashlib.sha256).hexdigest()

    def _key(self) -> bytes:
        path = os.path.join(self._place, "key")
        os.makedirs(self._place, mode=0o700, exist_ok=True)
        if not os.path.exists(path):
            draft = f"{path}.{secrets.token_hex(8)}"
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):  # another worker was first
                os.link(draft, path)
            os.unlink(draft)
        with open(path, "rb") as file:
            return file.read()

    async def receive(self, tenant: str, digest: str, most: int, body: AsyncIterator[bytes]) -> None:
        """Keep the archive when all of it has arrived. Older ones make room for it."""
        path = self.path_of(tenant, digest)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        draft, size = f"{path}.{secrets.token_hex(8)}.part", 0
        try:
            with open(draft, "xb") as file:
                async with asyncio.timeout(UPLOAD_SECONDS):
                    async for piece in body:
                        size += len(piece)
                        if size > most:
                            message = f"the archive is larger than {most} bytes"
                            raise HttpError(413, message, headers={"Connection": "close"})
                        file.write(piece)
            os.rename(draft, path)
        except ClientDisconnect:
            raise ClientDisconnected from None
        except TimeoutError:
            raise HttpError(408, f"the archive did not arrive within {UPLOAD_SECONDS:g} s") from None
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)
        _make_room(os.path.dirname(path), most)


def _make_room(directory: str, most: int) -> None:
    """Remove the oldest archives until all together have at most `most` bytes."""
    entries = sorted(os.scandir(directory), key=lambda entry: entry.stat().st_mtime, reverse=True)
    total = 0
    for entry in entries:
        total += entry.stat().st_size
        if total > most:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)


def unpack(archive: str, directory: str, most_mb: int) -> None:
    """Unpack an uploaded archive into an empty directory. Raises `ImageInvalid`."""
    budget = Budget(ImageLimits(unpacked_bytes=most_mb * MIB, entries=200_000))
    with open(archive, "rb") as stream:
        reader = LayerReader(decompress(stream), budget, os.path.getsize(archive))
        Unpacker(directory, budget).unpack(reader)
