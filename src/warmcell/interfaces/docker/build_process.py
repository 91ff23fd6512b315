"""A build in a process of its own: `python -m warmcell.interfaces.docker.build_process`.

It reads one line of JSON from stdin and writes Docker's messages to stdout, one per line. Killing it ends the build
at any moment, with the cage of its present step. It also ends when stdin ends, because the server has exited.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from warmcell.core.errors import ImageNotFound, SandboxError
from warmcell.images import Image, ImageStore
from warmcell.images.progress import BuildProgress
from warmcell.images.prune import check_room
from warmcell.lifetime.host_program import start_daemon
from warmcell.policy.model import SandboxPolicy

#: How many base images a build may pull.
_MAX_PULLS = 20


def main() -> None:
    job = json.loads(_read_line())
    start_daemon(_end_with_server)
    try:
        image = _build(ImageStore(job["store"]), job)
    except SandboxError as error:
        _write({"errorDetail": {"message": str(error)}, "error": str(error)})
        return
    _write({"aux": {"ID": image.digest}})
    _write({"stream": f"Successfully built {image.digest[7:19]}\n"})
    for name in job["names"]:
        _write({"stream": f"Successfully tagged {name}\n"})


def _read_line() -> bytes:
    """Read a line without `sys.stdin`: a thread that holds its lock would abort the interpreter's shutdown."""
    line = bytearray()
    while not line.endswith(b"\n") and (data := os.read(0, 1 << 16)):
        line += data
    return bytes(line)


def _end_with_server() -> None:
    """Exit when stdin ends: a killed server cannot end the build, and a build that prints nothing would not notice."""
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _build(store: ImageStore, job: dict[str, Any]) -> Image:
    """Build, and pull base images that the store lacks, as Docker does."""
    pulled: set[str] = set()
    while True:
        try:
            return _build_once(store, job)
        except ImageNotFound as missing:
            if missing.reference in pulled or len(pulled) >= _MAX_PULLS:
                raise
            pulled.add(missing.reference)
            _write({"status": f"Pulling {missing.reference}"})
            store.pull(missing.reference, on_progress=lambda _: check_room(store.path))


def _build_once(store: ImageStore, job: dict[str, Any]) -> Image:
    def report(progress: BuildProgress) -> None:
        if progress.state == "started":  # a step may take many GB, and many builds may have begun with the disk free
            check_room(store.path)
        _report(progress)

    image = store.build(
        job["context"],
        job["dockerfile"],
        name=job["names"][0],
        build_args=job["build_args"],
        target=job["target"] or None,
        policy=SandboxPolicy.from_json(job["policy"]),
        on_progress=report,
        uses_cache=job["uses_cache"],
    )
    for name in job["names"][1:]:
        store.tag(image.digest, name)
    return image


def _report(progress: BuildProgress) -> None:
    if progress.state == "started":
        _write({"stream": f"Step {progress.number}/{progress.total} : {progress.text}\n"})
    elif progress.state == "cached":
        _write({"stream": " ---> Using cache\n"})
    elif progress.state == "output":
        _write({"stream": progress.data.decode("utf-8", "replace")})


def _write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
