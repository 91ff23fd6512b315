"""How many bytes the files of each sandbox take, measured regularly for the usage ledger."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from contextlib import suppress

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, SandboxRegistry
from warmcell.interfaces.serve.usage import UsageLedger
from warmcell.lifetime.threads import in_thread

_log = logging.getLogger("warmcell.serve")
MIN_SECONDS, MEASURE_SECONDS = 2.0, 20.0
#: More files than this are not counted: a guest must not keep the server busy.
MAX_FILES = 200_000


async def measure_regularly(sandboxes: SandboxRegistry, ledger: UsageLedger) -> None:
    """Also after each request for the figures, so that the next one is up to date."""
    while True:
        try:
            await measure(sandboxes.all(), ledger)
        except sqlite3.Error as error:  # tried again
            _log.error("cannot write stored bytes: %s", error)
        await asyncio.sleep(MIN_SECONDS)
        ledger.is_read.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(MEASURE_SECONDS):
                await ledger.is_read.wait()


async def measure(entries: list[SandboxEntry], ledger: UsageLedger) -> None:
    """Sandboxes that are not among the entries no longer store anything."""
    found = {}
    for entry in entries:
        with suppress(SandboxError):  # it was destroyed meanwhile
            path = entry.sandbox.work_dir
            found[entry.tenant_id, entry.id] = await in_thread(lambda path=path: directory_bytes(path))  # type: ignore[misc]
    await in_thread(lambda: ledger.set_stored(found))


def directory_bytes(path: str) -> int:
    """Allocated bytes. A guest may change the tree meanwhile: no link is followed."""
    size = files = 0
    with suppress(FileNotFoundError):  # the sandbox has ended
        for _, names, others, directory in os.fwalk(path, follow_symlinks=False):
            for name in (*names, *others):
                with suppress(OSError):  # removed meanwhile
                    size += os.stat(name, dir_fd=directory, follow_symlinks=False).st_blocks * 512
            files += len(names) + len(others)
            if files > MAX_FILES:
                break
    return size
