"""Builds into the wheel what would otherwise be made at every use.

- The Python modules of common commands, compiled by the building interpreter, in one file (`cage/bundle.py`) that other
  interpreters ignore.
- With a C compiler, the small program in front of the command (`bin/front.c`). The wheel is then for one processor; the
  program is static, so that the C library does not matter.
- The manual page and completions for shells.

Editable installs have none of these. WARMCELL_PURE=1 leaves the program out, for a wheel for every platform. The
modules of the toolbox are a package of their own, in `packages/toolbox`. WARMCELL_MACHINE names another processor, if
CC compiles for it.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SCRIPT, BEHIND = "bin/warmcell", "warmcell-python"
#: Where shells and `man` look, below the prefix of an installation.
DOCUMENTS = {
    "man": "share/man/man1/warmcell.1",
    "bash": "share/bash-completion/completions/warmcell",
    "zsh": "share/zsh/site-functions/_warmcell",
    "fish": "share/fish/vendor_completions.d/warmcell.fish",
}


def is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def from_modules(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "modules"))
    return importlib.import_module(name)


def scratch_directory(name: str) -> Path:
    """Beside the sources, so that the next build can use it again, or else temporary."""
    kept = ROOT / "build" / name
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="warmcell-build-"))
    return kept if os.access(kept, os.W_OK) else Path(tempfile.mkdtemp(prefix="warmcell-build-"))


def make_documents(directory: Path) -> dict[str, Path]:
    """The bundle of modules, the manual page and the completions, by the name of their kind.

    In an interpreter of its own with a fixed hash seed: the order of sets in compiled code depends on it. Without the
    columns of each instruction, which only underline parts of lines in tracebacks: they are a quarter of the bundle.
    """
    command = [sys.executable, "-B", str(ROOT / "modules/documents.py"), str(directory)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONNODEBUGRANGES": "1"})
    return {path.stem: path for path in sorted(directory.iterdir())}


def build_front() -> Path | None:
    made: Path | None = from_modules("front").compile_front(scratch_directory("front"))
    return made


def platform_tag() -> str:
    machine = os.environ.get("WARMCELL_MACHINE") or platform.machine()
    return f"py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"


class BuildCommand(BuildHookInterface):
    """Hatchling's build hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_data["shared_scripts"] = {SCRIPT: "warmcell"}
        if version == "editable":
            return
        self._documents = tempfile.mkdtemp(prefix="warmcell-build-")
        made = make_documents(Path(self._documents))
        bundle = made.pop("bundle")
        build_data["force_include"][str(bundle)] = f"warmcell/modules.{sys.implementation.cache_tag}.bin"
        build_data["shared_data"] = {str(path): DOCUMENTS[kind] for kind, path in made.items()}
        front = None if is_set("WARMCELL_PURE") else build_front()
        if front is None:
            self.app.display_warning("no front program, commands start slower: pure build, or no working C compiler")
            return
        build_data["shared_scripts"] = {SCRIPT: BEHIND, str(front): "warmcell"}
        build_data["pure_python"] = False
        build_data["tag"] = platform_tag()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._documents)
