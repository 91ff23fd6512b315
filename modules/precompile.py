"""Compile the modules of the toolbox for this platform: `python3 modules/precompile.py DIRECTORY [--python]`.

The build of a wheel does this (hatch_build.py) and puts the directory into it. Code and settings are those with which a
worker compiles; the result runs on every processor of the platform that is not ancient, and with exactly this wasmtime.
What DIRECTORY already has is kept. `--python` adds the Python interpreter, where componentize-py can build it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
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

from warmcell.toolbox import loader, python_component, ready_made, runtime  # noqa: E402

TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
MODULES = ("toolbox", "node", "git")

Report = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """A module to compile, by the digest under which a run looks for it."""

    name: str
    digest: str
    entry: str
    read: Callable[[], bytes]
    is_component: bool = False


def target() -> str | None:
    """The platform that is compiled for, or None where that is not supported."""
    return TARGETS.get(platform.machine()) if sys.platform == "linux" else None


def precompile(directory: Path, with_python: bool, report: Report) -> list[Path]:
    """Fills the directory and returns what belongs into a wheel; raises what wasmtime raises."""
    directory.mkdir(parents=True, exist_ok=True)
    here = facts_of_this_build()
    kept = kept_records(directory, here)
    records = {}
    for wanted in wanted_modules(with_python):
        try:
            records[wanted.digest] = kept.get(wanted.digest) or compile_one(wanted, directory, here["target"], report)
        except python_component.ComponentUnavailable as error:  # an installation without it is better than none
            report(f"{wanted.name} is left out, whoever uses it first waits for it: {error}")
    manifest = directory / ready_made.MANIFEST
    manifest.write_text(json.dumps({**here, "modules": records}, indent=2) + "\n")
    return [manifest, *(directory / record["file"] for record in records.values())]


def facts_of_this_build() -> dict[str, Any]:
    machine = platform.machine()
    return {
        "wasmtime": runtime.wasmtime_version(),
        "settings": runtime.settings_digest(),
        "machine": machine,
        "target": TARGETS[machine],
        "features": ready_made.FEATURES.get(machine, []),
    }


def wanted_modules(with_python: bool) -> Iterator[Wanted]:
    for name in MODULES:
        artefact = loader.find_artefact(name)
        yield Wanted(name, f"own:{artefact.sha256}", artefact.entry, artefact.read)
    if with_python:
        yield Wanted("python", f"own:{python_component.component_name()}", "run", build_python, is_component=True)


def build_python() -> bytes:
    python_component.require_builder()
    with tempfile.TemporaryDirectory(prefix="warmcell-python-") as folder:
        return python_component.build_component(Path(folder)).read_bytes()


def kept_records(directory: Path, here: dict[str, Any]) -> dict[str, Any]:
    """What an earlier build for the same runtime left, as far as the files are still what they were."""
    try:
        manifest = json.loads((directory / ready_made.MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    if {name: manifest.get(name) for name in here} != here:
        return {}
    return {digest: record for digest, record in manifest["modules"].items() if is_whole(directory, record)}


def is_whole(directory: Path, record: dict[str, Any]) -> bool:
    path = directory / record["file"]
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"]


def compile_one(wanted: Wanted, directory: Path, for_target: str, report: Report) -> dict[str, Any]:
    report(f"compiling {wanted.name} for {for_target}")
    started = time.monotonic()
    compiled, facts = (compiled_component if wanted.is_component else compiled_module)(wanted, for_target)
    path = directory / f"{wanted.name}.cwasm"
    path.write_bytes(compiled)
    report(f"{wanted.name}: {len(compiled) / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")
    return {
        "file": path.name,
        "sha256": hashlib.sha256(compiled).hexdigest(),
        "entry": wanted.entry,
        "facts": facts,
    }


def compiled_module(wanted: Wanted, for_target: str) -> tuple[bytes, dict[str, Any]]:
    from wasm.engine import Source, compile_module, make_engine

    source = Source("wasm", wanted.read(), wanted.entry, needs_fuel=False, has_host=True)
    module, facts = compile_module(make_engine(False, target=for_target), source)
    return bytes(module.serialize()), facts._asdict()


def compiled_component(wanted: Wanted, for_target: str) -> tuple[bytes, dict[str, Any]]:
    from wasm.component import compile_component
    from wasm.engine import make_engine

    engine = make_engine(False, has_components=True, target=for_target)
    component, facts = compile_component(engine, wanted.read(), wanted.entry)
    return bytes(component.serialize()), facts._asdict()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--python", action="store_true", help="the Python interpreter, too")
    options = parser.parse_args()
    if target() is None:
        print(f"error: there is no target for {sys.platform} {platform.machine()}", file=sys.stderr)
        return 2
    precompile(options.directory, options.python, lambda text: print(text, file=sys.stderr))
    return 0


if __name__ == "__main__":
    sys.exit(main())
