"""Finds the toolbox modules and their commands. Reads manifests; runs nothing."""

from __future__ import annotations

import functools
import os

from warmcell.cage.fast_imports import read_json
from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import dataclass
from warmcell.toolbox.runtime import REMEDY, modules_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DIRECTORY = os.path.dirname(os.path.realpath(__file__))
TOOLBOX, PYTHON = "toolbox", "python"
#: Commands in separate modules, so that the shell starts without them.
OWN_MODULES = {"node": "node", "nodejs": "node", "git": "git", "python": PYTHON, "python3": PYTHON}


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

        return python_component.is_available()
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
