"""The committed artefacts match modules.json and their sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import wasmtime
from harness import MANIFEST, TOOLBOX

BUILD = Path(__file__).resolve().parents[2] / "modules" / "build.py"
ALLOWED = {"wasi_snapshot_preview1", "sandbox"}


def test_hashes_agree() -> None:
    done = subprocess.run([sys.executable, str(BUILD), "all", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_module_has_only_known_imports_and_exports() -> None:
    engine = wasmtime.Engine()
    for name in ("node",):  # compiling git.wasm once more would cost ten seconds; its fixture links it anyway
        module = wasmtime.Module.from_file(engine, str(TOOLBOX / MANIFEST[name]["file"]))
        assert {item.module for item in module.imports} <= ALLOWED
        assert sorted(item.name for item in module.exports) == ["memory", MANIFEST[name]["entry"]]


def test_no_path_of_the_build_machine_is_in_an_artefact() -> None:
    for entry in MANIFEST.values():
        data = (TOOLBOX / entry["file"]).read_bytes()
        for marker in (b"/home/", b"/root/", b"/tmp/warmcell-build"):
            assert marker not in data, (entry["file"], marker)
