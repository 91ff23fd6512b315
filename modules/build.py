"""Build the WASM modules of the toolbox: `python3 modules/build.py [node|git|all] [--check | --rebuild-check]`.

Needs PyPI's `wasmtime`, for node also `ziglang` and cargo, for git Go; versions.json pins them. The artefacts and
`modules.json` (checksums, hash of the sources, entry point) are committed; `--check` compares hashes without building,
`--rebuild-check` builds in a temporary directory and compares the bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODULES = Path(__file__).resolve().parent
ARTEFACTS = MODULES.parent / "src" / "warmcell" / "toolbox"
MANIFEST = ARTEFACTS / "modules.json"
VERSIONS: dict[str, Any] = json.loads((MODULES / "versions.json").read_text())
SHARED_SOURCES = ["build.py", "wasm_snapshot.py", "versions.json"]


class BuildError(Exception):
    """Something the build needs is missing or not what was pinned."""


# ---- node: quickjs-ng, the C glue and the JavaScript library, snapshotted ----

NODE_FLAGS = """
    -target wasm32-wasi -mexec-model=reactor -std=gnu23 -O2 -DNDEBUG -D_GNU_SOURCE -D_WASI_EMULATED_PROCESS_CLOCKS
    -fno-sanitize=undefined -g0 -w
""".split()
NODE_STACK_BYTES = 4 << 20


def build_node(work: Path, target: Path) -> None:
    from wasm_snapshot import take_snapshot

    require_package("ziglang")
    require_package("wasmtime")
    quickjs = fetch_quickjs(work)
    bundle_library(work / "library.bundle")
    raw = work / "node.raw.wasm"
    sources = [MODULES / "node" / "src" / name for name in ("engine.c", "host.c", "digest.c", "main.c")]
    engine = [quickjs / name for name in ("libregexp.c", "libunicode.c", "dtoa.c")]
    prefixes = {quickjs: "quickjs", work: ".", MODULES: "modules"}  # no path of the build machine in the artefact
    flags = [
        *NODE_FLAGS,
        *(f"-ffile-prefix-map={path}={name}" for path, name in prefixes.items()),
        f"-Wl,-z,stack-size={NODE_STACK_BYTES}",
        "-Wl,--strip-all",
        f"-I{quickjs}",
        f"-I{MODULES / 'node' / 'src'}",
        f"--embed-dir={work}",
        "-lwasi-emulated-process-clocks",
    ]
    compiler = [sys.executable, "-m", "ziglang", "cc"]
    run([*compiler, *flags, *map(str, sources), *map(str, engine), "-o", str(raw)], cwd=work)
    target.write_bytes(take_snapshot(raw.read_bytes(), ("_initialize", "init"), "run"))


def fetch_quickjs(work: Path) -> Path:
    """The C sources travel inside a crate; cargo checks it against its index, we check it against our pin."""
    pin = VERSIONS["node"]["quickjs_crate"]
    crate = work / "quickjs-sources"
    crate.mkdir()
    (crate / "empty.rs").touch()
    (crate / "Cargo.toml").write_text(
        '[package]\nname = "quickjs-sources"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "empty.rs"\n'
        f'[dependencies]\n{pin["name"]} = "={pin["version"]}"\n'
    )
    run(["cargo", "vendor", "--quiet", "vendor"], cwd=crate, stdout=subprocess.DEVNULL)
    vendored = crate / "vendor" / pin["name"]
    found = json.loads((vendored / ".cargo-checksum.json").read_text())["package"]
    if found != pin["sha256"]:
        raise BuildError(f"{pin['name']} {pin['version']} has checksum {found}, pinned is {pin['sha256']}")
    return vendored / "quickjs"


def bundle_library(target: Path) -> None:
    """All of node/lib as `name NUL source NUL`, in the order of the names."""
    parts = []
    for file in sorted((MODULES / "node" / "lib").glob("*.js")):
        parts += [f"node:internal/{file.stem}".encode(), file.read_bytes()]
    target.write_bytes(b"".join(part + b"\0" for part in parts))


# ---- git: Go, snapshotted after the runtime's initialisation ----


GO_BUILD = ["go", "build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false"]


def build_git(work: Path, target: Path) -> None:
    from wasm_snapshot import take_snapshot

    require_package("wasmtime")
    pinned = VERSIONS["git"]["go"]
    found = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    if found != f"go{pinned}":
        raise BuildError(f"go {pinned} is pinned, found {found}")
    environment = {**os.environ, "GOOS": "wasip1", "GOARCH": "wasm", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    raw = work / "git.raw.wasm"
    run(  # checklinkname: run_wasip1.go sets two variables of package syscall that are filled only at start-up
        [*GO_BUILD, "-ldflags=-s -w -buildid= -checklinkname=0", "-o", str(raw), "."],
        cwd=MODULES / "git",
        env=environment,
    )
    target.write_bytes(take_snapshot(raw.read_bytes(), ("_initialize",), "run"))


# ---- hashes and the manifest ----

BUILDERS: dict[str, Callable[[Path, Path], None]] = {"node": build_node, "git": build_git}
ENTRIES: dict[str, dict[str, Any]] = {
    "node": {"entry": "run", "abi": "reactor: () -> i32; do not call _initialize", "max_wasm_stack": 2 << 20},
    "git": {"entry": "run", "abi": "reactor: () -> i32; do not call _initialize"},
}


def source_hash(name: str) -> str:
    digest = hashlib.sha256()
    files = [MODULES / shared for shared in SHARED_SOURCES] + [f for f in (MODULES / name).rglob("*") if f.is_file()]
    for file in sorted(files):
        name_bytes = file.relative_to(MODULES).as_posix().encode()
        digest.update(name_bytes + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(name: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="warmcell-build-") as work:
        BUILDERS[name](Path(work), target)


def record(name: str) -> None:
    manifest = json.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}
    artefact = ARTEFACTS / f"{name}.wasm"
    manifest[name] = {
        "file": artefact.name,
        "sha256": file_hash(artefact),
        "size": artefact.stat().st_size,
        "source_sha256": source_hash(name),
        **ENTRIES[name],
        "built_from": VERSIONS[name],
    }
    MANIFEST.write_text(json.dumps(dict(sorted(manifest.items())), indent=2) + "\n")


def check(name: str) -> list[str]:
    manifest = json.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}
    entry = manifest.get(name)
    if entry is None:
        return [f"{name}: not in {MANIFEST.name}"]
    problems = []
    if entry["source_sha256"] != source_hash(name):
        problems.append(f"{name}: the sources changed since the artefact was built; run modules/build.py {name}")
    if not (ARTEFACTS / entry["file"]).exists() or entry["sha256"] != file_hash(ARTEFACTS / entry["file"]):
        problems.append(f"{name}: {entry['file']} is not the artefact that {MANIFEST.name} describes")
    return problems


def rebuild_check(name: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="warmcell-rebuild-") as folder:
        fresh = Path(folder) / f"{name}.wasm"
        build(name, fresh)
        if file_hash(fresh) != file_hash(ARTEFACTS / fresh.name):
            return [f"{name}: a rebuild gives other bytes than the committed artefact"]
    return []


def require_package(name: str) -> None:
    wanted = VERSIONS["tools"][name]
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(f"{name} is missing: pip install {name}=={wanted}") from None
    if found != wanted:
        raise BuildError(f"{name} {wanted} is pinned, found {found}: pip install {name}=={wanted}")


def run(command: list[str], **options: Any) -> None:
    if shutil.which(command[0]) is None:
        raise BuildError(f"{command[0]} is missing")
    subprocess.run(command, check=True, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("module", nargs="?", default="all", choices=[*BUILDERS, "all"])
    parser.add_argument("--check", action="store_true", help="compare hashes, build nothing")
    parser.add_argument("--rebuild-check", action="store_true", help="build again and compare bytes")
    options = parser.parse_args()
    problems: list[str] = []
    for name in BUILDERS if options.module == "all" else [options.module]:
        if options.check or options.rebuild_check:
            problems += check(name)
            if options.rebuild_check:
                problems += rebuild_check(name)
            continue
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        build(name, ARTEFACTS / f"{name}.wasm")
        record(name)
        print(f"{name}.wasm: {(ARTEFACTS / f'{name}.wasm').stat().st_size / 1e6:.1f} MB", file=sys.stderr)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
