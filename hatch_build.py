"""The wheel brings what would otherwise be made at the first use, or at each.

Our own Python modules, compiled by the interpreter that builds, in the one file that commands load them from
(`cage/bundle.py`): other interpreters pass it by. Where there is a C compiler, the small program in front of the
command (`bin/front.c`). And the modules of the toolbox, so that nobody's first command waits for a compiler: they are
used with the very wasmtime that compiled them only. With them goes what commands load of that wasmtime in place of its
own declarations. A wheel with either of the latter two is for one platform.

Editable installs have none of it. WARMCELL_NO_PRECOMPILE=1 leaves the modules of the toolbox out, which are compiled
when they are first used then; WARMCELL_NO_PRECOMPILE_PYTHON=1 its Python alone. WARMCELL_PURE=1 gives a wheel for every
platform.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
INTO = "warmcell/toolbox/ready_made"
ELSEWHERE = ("guest/", "toolbox/python_app/")
SCRIPT, BEHIND = "bin/warmcell", "warmcell-python"


def is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def leaves_modules_out() -> bool:
    return is_set("WARMCELL_NO_PRECOMPILE") or is_set("WARMCELL_PURE")


def from_modules(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "modules"))
    return importlib.import_module(name)


def precompiler() -> ModuleType:
    return from_modules("precompile")


def scratch_directory(name: str) -> Path:
    """Beside the sources, so that the next build finds what this one made, or for this build alone."""
    kept = ROOT / "build" / name
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="warmcell-build-"))
    return kept if os.access(kept, os.W_OK) else Path(tempfile.mkdtemp(prefix="warmcell-build-"))


def write_bundle() -> Path:
    """The file of our own modules, but for those that run elsewhere: in guests, and in WebAssembly."""
    package = ROOT / "src/warmcell"
    spec = importlib.util.spec_from_file_location("bundle", package / "cage/bundle.py")
    assert spec is not None and spec.loader is not None
    bundle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bundle)
    path = scratch_directory("bundle") / bundle.NAME
    bundle.write(str(path), str(package), ELSEWHERE)
    return path


def compiled_front() -> Path | None:
    made: Path | None = from_modules("front").compile_front(scratch_directory("front"))
    return made


def wants_python() -> bool:
    """Not where its builder would have to be built first: there are wheels of componentize-py for glibc alone."""
    return platform.libc_ver()[0] == "glibc" and not is_set("WARMCELL_NO_PRECOMPILE_PYTHON")


class CompileModules(BuildHookInterface):
    """Hatchling makes one for each build."""

    def dependencies(self) -> list[str]:
        if leaves_modules_out() or precompiler().target() is None:
            return []
        return self.metadata.core.optional_dependencies["wasm-python" if wants_python() else "wasm"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            bundle = write_bundle()
            build_data["force_include"][str(bundle)] = f"warmcell/{bundle.name}"
        front = None if version == "editable" or is_set("WARMCELL_PURE") else compiled_front()
        if front is None:
            self.app.display_info("the command is its script alone: editable, pure, or no C compiler that works here")
        build_data["shared_scripts"] = (
            {SCRIPT: "warmcell"} if front is None else {SCRIPT: BEHIND, str(front): "warmcell"}
        )
        reason = self.why_not(version)
        if reason:
            self.app.display_info(f"no compiled modules: {reason}")
        else:
            made = precompiler().precompile(scratch_directory("ready_made"), wants_python(), self.app.display_info)
            bindings = from_modules("bindings").write_bindings(scratch_directory("bindings"))
            made += [bindings] if bindings is not None else []
            build_data["force_include"] |= {str(path): f"{INTO}/{path.name}" for path in made}
        if front is not None or not reason:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def why_not(self, version: str) -> str:
        """Why this build has no compiled modules, or an empty text."""
        if version == "editable":
            return "the sources may change"
        if leaves_modules_out():
            return "the environment says so"
        if importlib.util.find_spec("wasmtime") is None:
            return "wasmtime is not installed"
        if precompiler().target() is None:
            return "there is no target for this platform"
        return ""
