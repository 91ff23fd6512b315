"""Build the toolbox: Go sources -> WASM reactor -> snapshot -> src/warmcell/toolbox/toolbox.wasm with its manifest.

    python3 toolbox/build.py                  build and write the artefact
    python3 toolbox/build.py --check          the artefact and its manifest belong to these sources
    python3 toolbox/build.py --rebuild-check  build again in a temporary directory and compare bytes
    python3 toolbox/build.py --modfile DIR    write patched libraries and a go.mod (for go test -modfile=DIR/go.mod)
    python3 toolbox/build.py --native FILE    a native binary, for quick tests of the command code

Needs Go and, for the snapshot, the Python package wasmtime.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: `wasm_snapshot.py` is there.
SHARED = HERE.parent / "modules"
ARTEFACT = HERE.parent / "src" / "warmcell" / "toolbox" / "toolbox.wasm"
MANIFEST = ARTEFACT.with_name("toolbox.json")
PATCHED_MODULES = {"goawk": "github.com/benhoyt/goawk", "gojq": "github.com/itchyny/gojq"}
EXTRA_FILE_DIRS = {"goawk": "interp", "gojq": "."}
LINKER_FLAGS = "-s -w -buildid= -checklinkname=0"
# Go records replaced paths in the binary: a fixed relative one keeps the bytes the same everywhere.
PATCHED = HERE / ".patched"


class BuildError(Exception):
    """A step of the build failed; the text says which and why."""


def source_files() -> list[Path]:
    """Every file that affects the artefact, in a stable order."""
    kept = [
        path
        for path in HERE.rglob("*")
        if path.is_file()
        and not {"__pycache__", ".patched"} & set(path.parts)
        and not path.name.endswith("_test.go")
        and path.suffix in {".go", ".mod", ".sum", ".patch", ".py", ".txt"}
    ]
    return sorted([*kept, SHARED / "wasm_snapshot.py"], key=relative_name)


def relative_name(path: Path) -> str:
    return path.relative_to(HERE.parent).as_posix()


def source_hash() -> str:
    digest = hashlib.sha256()
    for path in source_files():
        content = path.read_bytes()
        digest.update(f"{relative_name(path)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def go(*args: str, **environment: str) -> str:
    env = {**os.environ, "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0", **environment}
    try:
        done = subprocess.run(["go", *args], cwd=HERE, env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BuildError("go is not installed") from None
    if done.returncode != 0:
        raise BuildError(f"go {args[0]} failed:\n{done.stderr}")
    return done.stdout


def write_modfile(into: Path) -> Path:
    """Patch copies of the few libraries that need it and return a go.mod that points at them."""
    lines = [(HERE / "go.mod").read_text()]
    for short, module in PATCHED_MODULES.items():
        go("mod", "download", module)
        original = Path(go("list", "-m", "-f", "{{.Dir}}", module).strip())
        patched = PATCHED / short
        shutil.rmtree(patched, ignore_errors=True)
        shutil.copytree(original, patched, copy_function=shutil.copyfile)
        for path in [patched, *patched.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        apply_patch(HERE / "patches" / short / f"{short}.patch", patched)
        for extra in sorted((HERE / "patches" / short).glob("*.go.txt")):
            shutil.copyfile(extra, patched / EXTRA_FILE_DIRS[short] / extra.stem)
        lines.append(f"replace {module} => ./{patched.relative_to(HERE).as_posix()}\n")
    modfile = into / "go.mod"
    modfile.write_text("\n".join(lines))
    shutil.copyfile(HERE / "go.sum", into / "go.sum")
    return modfile


def apply_patch(patch: Path, directory: Path) -> None:
    done = subprocess.run(
        ["patch", "-s", "-p1", "-i", str(patch)], cwd=directory, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"{patch.name} does not apply:\n{done.stdout}{done.stderr}")


def compile_reactor(modfile: Path, output: Path) -> bytes:
    go(
        "build",
        "-trimpath",
        "-buildvcs=false",
        f"-modfile={modfile}",
        f"-ldflags={LINKER_FLAGS}",
        "-buildmode=c-shared",
        "-o",
        str(output),
        ".",
        GOOS="wasip1",
        GOARCH="wasm",
    )
    return output.read_bytes()


def build() -> bytes:
    """Return the snapshotted module."""
    try:
        from table_filling import find_called_functions, with_table_filling
        from wasm_snapshot import take_snapshot
    except ImportError as problem:
        raise BuildError(f"the snapshot needs the Python package wasmtime ({problem})") from None
    with tempfile.TemporaryDirectory(prefix="toolbox-") as scratch:
        plain = compile_reactor(write_modfile(Path(scratch)), Path(scratch) / "plain.wasm")
    called = find_called_functions(plain, "_initialize", "rehearse")
    return with_table_filling(take_snapshot(plain, ("_initialize", "rehearse"), "run"), called)


def command_names(module: bytes) -> list[str]:
    """Ask the finished module which commands it has."""
    import wasmtime

    engine = wasmtime.Engine()
    compiled = wasmtime.Module(engine, module)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    for one in compiled.imports:
        if one.module == "sandbox":
            assert isinstance(one.type, wasmtime.FuncType)
            linker.define_func("sandbox", one.name or "", one.type, lambda *_: -1)
    with tempfile.TemporaryDirectory(prefix="toolbox-") as scratch:
        output = Path(scratch) / "names"
        wasi = wasmtime.WasiConfig()
        wasi.argv = ["toolbox", "--list"]
        wasi.stdout_file = str(output)
        store = wasmtime.Store(engine)
        store.set_wasi(wasi)
        run = linker.instantiate(store, compiled).exports(store)["run"]
        assert isinstance(run, wasmtime.Func)
        run(store)
        return output.read_text().split()


def manifest(module: bytes, commands: list[str]) -> str:
    facts = {
        "sha256": hashlib.sha256(module).hexdigest(),
        "source_sha256": source_hash(),
        "commands": commands,
        "host_commands": ["git", "node", "nodejs", "python", "python3"],
        "go": go("env", "GOVERSION").strip(),
    }
    return json.dumps(facts, indent=2) + "\n"


def check() -> None:
    facts = json.loads(MANIFEST.read_text())
    if facts["sha256"] != hashlib.sha256(ARTEFACT.read_bytes()).hexdigest():
        raise BuildError("toolbox.wasm is not the file that toolbox.json describes")
    if facts["source_sha256"] != source_hash():
        raise BuildError("the sources changed after toolbox.wasm was built\nhint: run python3 toolbox/build.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true")
    choice.add_argument("--rebuild-check", action="store_true")
    choice.add_argument("--modfile", type=Path)
    choice.add_argument("--native", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(SHARED))
    try:
        if options.check:
            check()
        elif options.modfile:
            options.modfile.mkdir(parents=True, exist_ok=True)
            print(write_modfile(options.modfile.resolve()))
        elif options.native:
            with tempfile.TemporaryDirectory(prefix="toolbox-") as scratch:
                go(
                    "build",
                    "-trimpath",
                    f"-modfile={write_modfile(Path(scratch))}",
                    "-o",
                    str(options.native.resolve()),
                    ".",
                )
        elif options.rebuild_check:
            check()
            if build() != ARTEFACT.read_bytes():
                raise BuildError("a rebuild gives other bytes than the committed toolbox.wasm")
        else:
            module = build()
            commands = command_names(module)
            ARTEFACT.parent.mkdir(parents=True, exist_ok=True)
            ARTEFACT.write_bytes(module)
            MANIFEST.write_text(manifest(module, commands))
            print(f"{len(module):,} bytes, {len(commands)} commands")
    except BuildError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
