"""Modules that were compiled when the wheel was built, so that nobody's first command waits for a compiler.

They are as much a part of the installation as its Python files and are believed as these are. What has to be checked is
that they were made for exactly this wasmtime, these settings and such a processor, and that the disk still has what was
built. Where anything is otherwise, the module is compiled as if there were no such file.
"""

from __future__ import annotations

import contextlib
import functools
import os

from warmcell.cage.light import read_json
from warmcell.core.late_log import LateLog
from warmcell.toolbox.runtime import READY_MADE, machine, processor_features, settings_digest, wasmtime_version
from warmcell.toolbox.signed_directory import (
    SignedDirectory,
    SignedFile,
    Tampered,
    Unusable,
    cache_directory,
    content_digest,
    sealed_copy,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DIRECTORY = READY_MADE
MANIFEST = "manifest.json"
#: What modules that travel may need of a processor: engine.PORTABLE_FLAGS by the kernel's names.
FEATURES = {"x86_64": ["pni", "popcnt", "sse4_1", "sse4_2", "ssse3"]}
_log = LateLog(__name__)


def has_ready_made(digest: str) -> bool:
    return digest in _modules()


def find_ready_made(digest: str, entry: str, *, is_copied: bool = False) -> SignedFile | None:
    """The compiled form of a module of ours, for the caller to close: the file itself, or a copy of it in memory."""
    record = _modules().get(digest)
    if record is None or record["entry"] != entry:
        return None
    path = os.path.join(DIRECTORY, record["file"])
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            is_used_itself = not is_copied and _is_like_code(found)
            module = os.dup(file.fileno()) if is_used_itself else sealed_copy(file.fileno())
            is_whole = _is_whole(found, module, record["sha256"])
    except OSError as error:
        _log.warning("%s cannot be used, the module is compiled anew: %s", path, error)
        return None
    if not is_whole:
        os.close(module)
        _log.warning("%s is not what was built, the module is compiled anew", path)
        return None
    return SignedFile(module, record["facts"], is_shipped=True)


def _is_like_code(found: os.stat_result) -> bool:
    """Who could change it could change our Python files; a caged worker, which is another user, can read it."""
    return found.st_uid in (0, os.geteuid()) and found.st_mode & 0o026 == 0o004


def _is_whole(found: os.stat_result, module: int, sha256: str) -> bool:
    """Compares the content once for each account; then a file that nothing has touched since is taken for the same."""
    identity = [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    notes, name = _notes(), f"whole-{sha256}"
    try:
        note = notes.read(name) if notes else None
    except Tampered:
        note = None
    if note is not None:
        note.close()
        if note.facts.get("identity") == identity:
            return True
    is_whole = content_digest(module) == sha256
    if is_whole and notes is not None:
        with contextlib.suppress(OSError), open(os.devnull, "rb") as nothing:
            notes.write(name, nothing.fileno(), {"identity": identity})
    return is_whole


def _notes() -> SignedDirectory | None:
    path = cache_directory("wasm")
    try:
        return SignedDirectory(path) if path else None
    except (OSError, Unusable):
        return None


@functools.cache
def _modules() -> dict[str, dict[str, Any]]:
    """By the digest of their source; none when they were made for something else."""
    try:
        with open(os.path.join(DIRECTORY, MANIFEST), "rb") as file:
            manifest = read_json(file.read().strip())
    except FileNotFoundError:
        return {}
    made_for = {name: manifest[name] for name in ("wasmtime", "settings", "machine")}
    here = {"wasmtime": wasmtime_version(), "settings": settings_digest(), "machine": machine()}
    if made_for != here or not processor_features() >= set(manifest["features"]):
        _log.info("the compiled modules of this installation were made for another wasmtime or processor")
        return {}
    return dict(manifest["modules"])
