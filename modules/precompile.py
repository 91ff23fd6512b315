"""Compile the toolbox modules for this platform: `python3 modules/precompile.py DIRECTORY [--python]`.

The build of warmcell-toolbox (packages/toolbox) does this and adds the directory to its wheel. Code and settings are
those of a worker; the result runs on every processor of the platform since about 2009, with exactly this wasmtime.
Modules that DIRECTORY already has are reused. `--python` adds the Python interpreter, if componentize-py can build it;
WARMCELL_PYTHON_COMPONENT names one that was built before (each build differs: Python's hash seed is part of it).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent.parent / "src"
sys.path[:0] = [str(SOURCES), str(SOURCES / "warmcell" / "guest")]

from warmcell.toolbox import loader, python_component, runtime  # noqa: E402

TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
MODULES = ("toolbox", "node", "git")

Report = Callable[[str], None]


@dataclass(frozen=True)
class ModuleToCompile:
    """A module to compile, with the digest under which a run looks for it."""

    name: str
    digest: str
    entry: str
    read: Callable[[], bytes]
    is_component: bool = False


def target() -> str | None:
    """The target platform, or None if it is not supported."""
    return TARGETS.get(platform.machine()) if sys.platform == "linux" else None


def precompile(directory: Path, with_python: bool, report: Report) -> list[Path]:
    """Fills the directory and returns the files for the wheel. Raises wasmtime's errors."""
    directory.mkdir(parents=True, exist_ok=True)
    here = facts_of_this_build()
    reusable = reusable_records(directory, here)
    records = {}
    for module in modules_to_compile(with_python):
        try:
            records[module.digest] = reusable.get(module.digest) or compile_one(
                module, directory, here["target"], report
            )
        except python_component.ComponentUnavailable as error:  # better than no wheel
            report(f"{module.name} is left out and will be built at its first use: {error}")
    manifest = directory / loader.MANIFEST
    manifest.write_text(json.dumps({**here, "modules": records}, indent=2) + "\n")
    return [manifest, *(directory / record["file"] for record in records.values())]


def facts_of_this_build() -> dict[str, Any]:
    machine = platform.machine()
    return {
        "wasmtime": runtime.wasmtime_version(),
        "settings": runtime.settings_digest(),
        "machine": machine,
        "target": TARGETS[machine],
        "features": loader.FEATURES.get(machine, []),
    }


def modules_to_compile(with_python: bool) -> Iterator[ModuleToCompile]:
    for name in MODULES:
        artefact = loader.find_artefact(name)
        yield ModuleToCompile(name, f"own:{artefact.sha256}", artefact.entry, artefact.read)
    if with_python:
        yield ModuleToCompile(
            "python", f"own:{python_component.component_name()}", "run", build_python, is_component=True
        )


def build_python() -> bytes:
    built = os.environ.get("WARMCELL_PYTHON_COMPONENT")
    if built:
        return Path(built).read_bytes()
    python_component.require_builder()
    with tempfile.TemporaryDirectory(prefix="warmcell-python-") as folder:
        return python_component.build_component(Path(folder)).read_bytes()


def reusable_records(directory: Path, here: dict[str, Any]) -> dict[str, Any]:
    """The records of an earlier build for the same runtime whose files are unchanged."""
    try:
        manifest = json.loads((directory / loader.MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    if {name: manifest.get(name) for name in here} != here:
        return {}
    return {digest: record for digest, record in manifest["modules"].items() if is_whole(directory, record)}


def is_whole(directory: Path, record: dict[str, Any]) -> bool:
    path = directory / record["file"]
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"]


def compile_one(module: ModuleToCompile, directory: Path, for_target: str, report: Report) -> dict[str, Any]:
    report(f"compiling {module.name} for {for_target}")
    started = time.monotonic()
    compiled, facts = (compile_component_module if module.is_component else compile_core_module)(module, for_target)
    path = directory / f"{module.name}.cwasm"
    path.write_bytes(compiled)
    report(f"{module.name}: {len(compiled) / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")
    return {
        "file": path.name,
        "sha256": hashlib.sha256(compiled).hexdigest(),
        "entry": module.entry,
        "facts": facts,
    }


def compile_core_module(module: ModuleToCompile, for_target: str) -> tuple[bytes, dict[str, Any]]:
    from wasm.engine import ModuleInput, compile_module, make_engine

    source = ModuleInput("wasm", module.read(), module.entry, needs_fuel=False, has_host=True)
    compiled, facts = compile_module(make_engine(False, target=for_target), source)
    return bytes(compiled.serialize()), facts._asdict()


def compile_component_module(module: ModuleToCompile, for_target: str) -> tuple[bytes, dict[str, Any]]:
    from wasm.component import compile_component
    from wasm.engine import make_engine

    engine = make_engine(False, has_components=True, target=for_target)
    component, facts = compile_component(engine, module.read(), module.entry)
    return bytes(component.serialize()), facts._asdict()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--python", action="store_true", help="compile the Python interpreter too")
    parser.add_argument("--only-python-component", action="store_true", help="build that, and compile nothing")
    options = parser.parse_args()
    if options.only_python_component:
        (options.directory / "python.wasm").write_bytes(build_python())
        return 0
    if target() is None:
        print(f"error: no target for {sys.platform} {platform.machine()}", file=sys.stderr)
        return 2
    precompile(options.directory, options.python, lambda text: print(text, file=sys.stderr))
    return 0


if __name__ == "__main__":
    sys.exit(main())
