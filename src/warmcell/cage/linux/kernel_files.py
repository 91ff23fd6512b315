"""Files that the kernel makes up. Not with `open`: its buffers and guesses at encodings cost more than all the rest."""

from __future__ import annotations

import os


def read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(descriptor, 1 << 16):
            chunks.append(chunk)
        return b"".join(chunks).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)


def write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
