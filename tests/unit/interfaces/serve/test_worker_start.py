"""A worker reports that it is ready when its application has started, not before."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import PATIENCE, open_descriptors

from warmcell.core.records import replace
from warmcell.interfaces.serve.front import worker
from warmcell.interfaces.serve.front.shared_memory import make_counts_file, make_states_file
from warmcell.interfaces.serve.front.workers import Worker
from warmcell.interfaces.serve.settings import Settings


def settings_for(usage: Path) -> dict[str, Any]:
    settings = replace(Settings(), usage=str(usage))
    return {name: getattr(settings, name) for name in Settings.__slots__}


async def start_worker(place: Path, settings: dict[str, Any]) -> tuple[asyncio.subprocess.Process, Any]:
    ours, theirs = socket.socketpair()
    memory = (make_states_file(1), make_counts_file(1))
    with socket.socket(socket.AF_UNIX) as listening, theirs, socket.socket(socket.AF_UNIX) as channel:
        listening.bind(str(place / "0"))
        listening.listen()
        descriptors = (listening.fileno(), theirs.fileno(), channel.fileno(), *memory)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", worker.__name__, "0", *map(str, descriptors)),
            pass_fds=descriptors,
            stderr=subprocess.DEVNULL,
        )
    for descriptor in memory:
        os.close(descriptor)
    reader, writer = await asyncio.open_connection(sock=ours)
    writer.write(json.dumps(settings).encode() + b"\n")
    return process, (reader, writer)


@pytest.mark.parametrize("can_start", [True, False])
async def test_a_worker_is_ready_when_its_application_has_started(tmp_path: Path, can_start: bool) -> None:
    os.mkdir(tmp_path / "directory")
    usage = tmp_path / ("usage.db" if can_start else "directory")  # a directory is no database
    process, (reader, writer) = await start_worker(tmp_path, settings_for(usage))
    try:
        async with asyncio.timeout(60):
            line = await reader.readline()
            assert line == (b'{"ready": true}\n' if can_start else b"")
            writer.close()
            assert (await process.wait() == 0) is can_start
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_worker_that_could_not_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One moment without memory or descriptors, and the server had a worker less until its end."""
    shared: Any = SimpleNamespace(connections=SimpleNamespace(states_file=0), counts_file=0)
    kept = Worker(0, str(tmp_path / "0"), Settings(), shared)
    attempts: list[tuple[int, ...]] = []

    async def fail(*descriptors: int) -> None:
        attempts.append(descriptors)
        if len(attempts) == 2:
            kept.end()
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(kept, "_start_process", fail)
    before = open_descriptors()
    async with asyncio.timeout(PATIENCE):
        await kept.keep_running()
    assert len(attempts) == 2 and open_descriptors() <= before


def test_a_worker_that_starts_reads_the_files_again_when_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the signal would end it; without it, a token that was revoked after it was read stayed valid."""
    shared: Any = SimpleNamespace(connections=SimpleNamespace(add_recipient=lambda _: None))
    starting, signals = Worker(0, str(tmp_path / "0"), Settings(), shared), list[signal.Signals]()
    monkeypatch.setattr(starting, "send_signal", signals.append)
    process: Any = SimpleNamespace(was_ready=False, recipient=None)
    (tmp_path / "0.new").touch()  # in place of its socket
    starting.reload()
    assert signals == []
    starting._handle(process, {"ready": True})
    assert signals == [signal.SIGHUP]
    starting.reload()
    assert signals == [signal.SIGHUP] * 2
