"""How many bytes the files of each sandbox take, measured regularly for the usage ledger."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing, suppress

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, SandboxRegistry
from warmcell.interfaces.serve.usage import UsageLedger
from warmcell.lifetime.threads import in_thread
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeLimits, walk

_log = logging.getLogger("warmcell.serve")
MIN_SECONDS, MEASURE_SECONDS = 2.0, 20.0
#: More files than this are not counted: a guest must not keep the server busy.
_LIMITS = TreeLimits(entries=200_000, seconds=60.0)


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
    """Allocated bytes. A guest may change the tree meanwhile: no link is followed, and what is too deep is left out."""
    size = 0
    with suppress(SandboxError), closing(Root(path)) as root:  # the sandbox has ended, or has more than the limits
        for found in walk(root, limits=_LIMITS):
            size += found.state.st_blocks * 512 if found.kind != "closed" else 0
    return size
