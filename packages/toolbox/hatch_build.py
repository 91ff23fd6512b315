"""Puts the modules of the toolbox into its wheel, on request in compiled form too.

WARMCELL_PRECOMPILE=1 compiles them, which takes a minute or two and needs wasmtime and componentize-py: the wheel is
then for one platform. WARMCELL_NO_PRECOMPILE_PYTHON=1 leaves the Python interpreter out of that.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
import tempfile
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
MODULES = CHECKOUT / "src/warmcell/toolbox"
INTO = "warmcell_toolbox"


def is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def from_modules(name: str) -> ModuleType:
    sys.path.insert(0, str(CHECKOUT / "modules"))
    return importlib.import_module(name)


def precompiler() -> ModuleType:
    return from_modules("precompile")


def scratch_directory(name: str) -> Path:
    """Beside the sources, so that the next build can use it again, or else temporary."""
    kept = CHECKOUT / "build" / name
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="warmcell-build-"))
    return kept if os.access(kept, os.W_OK) else Path(tempfile.mkdtemp(prefix="warmcell-build-"))


def wants_python() -> bool:
    """Only with glibc: elsewhere componentize-py has no wheels and would have to be built first."""
    return platform.libc_ver()[0] == "glibc" and not is_set("WARMCELL_NO_PRECOMPILE_PYTHON")


def platform_tag() -> str:
    """Compiled modules depend on the processor, and on no C library."""
    machine = platform.machine()
    return f"py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"


class AddModules(BuildHookInterface):
    """Hatchling's build hook."""

    def dependencies(self) -> list[str]:
        if not is_set("WARMCELL_PRECOMPILE") or not MODULES.is_dir():
            return []
        extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        wanted = [*extras["wasm-runtime"], *(extras["wasm-python"] if wants_python() else ())]
        return [item for item in wanted if not item.startswith("warmcell")]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if MODULES.is_dir():  # a source distribution has them in its package
            build_data["force_include"] |= {str(path): f"{INTO}/{path.name}" for path in sorted(MODULES.glob("*.wasm"))}
        reason = self.why_not(version)
        if reason:
            self.app.display_warning(f"no compiled modules, they are compiled at their first use: {reason}")
            return
        made = precompiler().precompile(scratch_directory("ready_made"), wants_python(), self.app.display_info)
        bindings = from_modules("bindings").write_bindings(scratch_directory("bindings"))
        made += [bindings] if bindings is not None else []
        build_data["force_include"] |= {str(path): f"{INTO}/ready_made/{path.name}" for path in made}
        build_data["pure_python"] = False
        build_data["tag"] = platform_tag()

    def why_not(self, version: str) -> str:
        """Why this build has no compiled modules; empty if it has."""
        if not is_set("WARMCELL_PRECOMPILE") or version == "editable":
            return "WARMCELL_PRECOMPILE=1 was not set"
        if not MODULES.is_dir():
            return "this is not a checkout"
        if importlib.util.find_spec("wasmtime") is None:
            return "wasmtime is not installed"
        if precompiler().target() is None:
            return "there is no target for this platform"
        return ""
