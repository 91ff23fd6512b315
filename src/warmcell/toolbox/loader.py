"""Finds the toolbox modules and their commands. Reads manifests; runs nothing.

Ready-made modules were compiled when the toolbox's wheel was built: the first command does not wait for a compiler.
They are trusted like the Python files of the installation. Checked are the wasmtime version, the settings, the
processor and the content of the file. If anything differs, the module is compiled as if there were no such file.
"""

from __future__ import annotations

import contextlib
import functools
import os

from warmcell.cage.fast_imports import read_json
from warmcell.core.errors import BackendUnavailable
from warmcell.core.light import LateLog
from warmcell.core.records import dataclass
from warmcell.toolbox.runtime import (
    REMEDY,
    machine,
    modules_directory,
    processor_features,
    ready_made_directory,
    settings_digest,
    wasmtime_version,
)
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

DIRECTORY = os.path.dirname(os.path.realpath(__file__))
TOOLBOX, PYTHON = "toolbox", "python"
#: Commands in separate modules, so that the shell starts without them.
OWN_MODULES = {"node": "node", "nodejs": "node", "git": "git", "python": PYTHON, "python3": PYTHON}
MANIFEST = "manifest.json"
#: The processor features of engine.PORTABLE_FLAGS, by the kernel's names.
FEATURES = {"x86_64": ["pni", "popcnt", "sse4_1", "sse4_2", "ssse3"]}
_log = LateLog(__name__)


@dataclass(frozen=True, slots=True)
class Artefact:
    """A built module, as its manifest describes it."""

    name: str
    path: str
    sha256: str
    entry: str

    def read(self) -> bytes:
        """Raises `BackendUnavailable` if the file cannot be read or does not match the manifest."""
        import hashlib

        try:
            data = _content(self.path)
        except FileNotFoundError:
            raise BackendUnavailable("the package 'warmcell-toolbox' is not installed", hint=REMEDY) from None
        except OSError as error:
            raise BackendUnavailable(f"cannot read the toolbox module {self.name}: {error}") from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise BackendUnavailable(f"{self.path} does not match its manifest", hint="reinstall warmcell-toolbox")
        return data


@functools.cache
def find_artefact(name: str) -> Artefact:
    """The module of that name (`toolbox`, `node`, `git`)."""
    record = _manifest("toolbox.json") if name == TOOLBOX else _manifest("modules.json").get(name)
    if not record:
        raise BackendUnavailable(f"this installation has no toolbox module {name!r}", hint="reinstall warmcell")
    entry = str(record.get("entry", "run"))
    path = os.path.join(modules_directory(), record.get("file", f"{name}.wasm"))
    return Artefact(name, path, str(record["sha256"]), entry)


@functools.cache
def toolbox_commands() -> frozenset[str]:
    """The names of all commands."""
    return frozenset(_manifest("toolbox.json").get("commands", ())) | OWN_MODULES.keys()


def present_commands() -> list[str]:
    """The commands that this installation can run, sorted."""
    present = {module: _is_present(module) for module in {TOOLBOX, *OWN_MODULES.values()}}
    return sorted(name for name in toolbox_commands() if present[OWN_MODULES.get(name, TOOLBOX)])


def _is_present(module: str) -> bool:
    if module == PYTHON:
        from warmcell.toolbox import python_component

        return has_shipped_module(python_component.component_digest()) or python_component.is_available()
    try:
        return os.path.isfile(find_artefact(module).path)
    except BackendUnavailable:
        return False


def module_of(command: str) -> str | None:
    """The module that runs a command, given by its name or by a path such as `/usr/bin/sort`."""
    name = command.rpartition("/")[2]
    if name in OWN_MODULES:
        return OWN_MODULES[name]
    return TOOLBOX if name in toolbox_commands() else None


def _manifest(file: str) -> dict[str, Any]:
    try:
        manifest = read_json(_content(os.path.join(DIRECTORY, file)).strip())
    except FileNotFoundError:
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def has_shipped_module(digest: str) -> bool:
    return digest in _modules()


def open_shipped_module(digest: str, entry: str, *, is_copied: bool = False) -> SignedFile | None:
    """One of our own modules in compiled form, for the caller to close: the file itself, or a copy in memory."""
    record = _modules().get(digest)
    if record is None or record["entry"] != entry:
        return None
    path = os.path.join(ready_made_directory(), record["file"])
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            is_direct = not is_copied and _is_like_code(found)
            module = os.dup(file.fileno()) if is_direct else sealed_copy(file.fileno())
            is_whole = _is_whole(found, module, record["sha256"])
    except OSError as error:
        _log.warning("cannot use %s, compiling the module again: %s", path, error)
        return None
    if not is_whole:
        os.close(module)
        _log.warning("%s was changed after the build, compiling the module again", path)
        return None
    return SignedFile(module, record["facts"], is_shipped=True)


def _is_like_code(found: os.stat_result) -> bool:
    """Whether the file is as well protected as our Python files, and readable for a caged worker, another user."""
    return found.st_uid in (0, os.geteuid()) and found.st_mode & 0o026 == 0o004


def _is_whole(found: os.stat_result, module: int, sha256: str) -> bool:
    """Compares the content once per account and records the file's identity; an unchanged identity is enough later."""
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
        with contextlib.suppress(OSError), open(os.devnull, "rb") as empty:
            notes.write(name, empty.fileno(), {"identity": identity})
    return is_whole


def _notes() -> SignedDirectory | None:
    path = cache_directory("wasm")
    try:
        return SignedDirectory(path) if path else None
    except (OSError, Unusable):
        return None


@functools.cache
def _modules() -> dict[str, dict[str, Any]]:
    """Records by the digest of the source; empty if they were built for another runtime or processor."""
    try:
        with open(os.path.join(ready_made_directory(), MANIFEST), "rb") as file:
            manifest = read_json(file.read().strip())
    except FileNotFoundError:
        return {}
    made_for = {name: manifest[name] for name in ("wasmtime", "settings", "machine")}
    here = {"wasmtime": wasmtime_version(), "settings": settings_digest(), "machine": machine()}
    if made_for != here or not processor_features() >= set(manifest["features"]):
        _log.info("the compiled modules of this installation are for another wasmtime or processor")
        return {}
    return dict(manifest["modules"])
