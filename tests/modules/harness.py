"""A minimal host for node.wasm and git.wasm: fresh instance per run, stdio over pipes and files, fetch answered by a callable."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import wasmtime

TOOLBOX = Path(__file__).resolve().parents[2] / "src" / "warmcell" / "toolbox"
MANIFEST = json.loads((TOOLBOX / "modules.json").read_text()) if (TOOLBOX / "modules.json").exists() else {}
NETWORKING_OFF = -2
NO_NETWORK = json.dumps(
    {
        "error": {
            "code": "sandbox.networking_disabled",
            "message": "networking is disabled; pass fetch_policy to enable it",
        }
    }
)

Fetch = Callable[[dict], tuple[int, str]]


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str


@dataclass
class Guest:
    """One compiled module; `run` starts a new instance every time."""

    name: str
    path: Path | None = None
    engine: wasmtime.Engine = field(init=False)
    module: wasmtime.Module = field(init=False)

    def __post_init__(self) -> None:
        config = wasmtime.Config()
        config.max_wasm_stack = MANIFEST.get(self.name, {}).get("max_wasm_stack", 2 << 20)
        config.cache = True
        self.engine = wasmtime.Engine(config)
        self.module = wasmtime.Module.from_file(self.engine, str(self.path or TOOLBOX / f"{self.name}.wasm"))
        self.entry = MANIFEST.get(self.name, {}).get("entry", "run")

    def run(
        self, *args: str, stdin: str = "", env: dict[str, str] | None = None, work: Path | None = None, cwd: str = "/work",
        fetch: Fetch | None = None, writable: bool = True, memory_bytes: int | None = None,
    ) -> Outcome:  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder) / name for name in ("stdin", "stdout", "stderr")}
            files["stdin"].write_text(stdin)
            config = wasmtime.WasiConfig()
            config.argv = [self.name, *args]
            config.env = list({"PWD": cwd, "HOME": "/work", **(env or {})}.items())
            config.stdin_file, config.stdout_file, config.stderr_file = (
                str(files[n]) for n in ("stdin", "stdout", "stderr")
            )
            if work is not None:
                config.preopen_dir(str(work), "/work", fs_mutable=writable)
            code = self._call(config, fetch or (lambda _request: (NETWORKING_OFF, NO_NETWORK)), memory_bytes)
            return Outcome(
                code, files["stdout"].read_text(errors="replace"), files["stderr"].read_text(errors="replace")
            )

    def _call(self, config: wasmtime.WasiConfig, fetch: Fetch, memory_bytes: int | None) -> int:
        store = wasmtime.Store(self.engine)
        store.set_wasi(config)
        if memory_bytes is not None:
            store.set_limits(memory_size=memory_bytes)
        linker = wasmtime.Linker(self.engine)
        linker.define_wasi()
        define_fetch(linker, fetch)
        instance = linker.instantiate(store, self.module)
        entry = instance.exports(store)[self.entry]
        try:
            return entry(store) or 0
        except wasmtime.ExitTrap as exit_:
            return exit_.code


def define_fetch(linker: wasmtime.Linker, fetch: Fetch) -> None:
    i32 = wasmtime.ValType.i32()
    response = b""

    def memory_of(caller: wasmtime.Caller) -> wasmtime.Memory:
        return caller["memory"]

    def start(caller: wasmtime.Caller, address: int, length: int) -> int:
        nonlocal response
        request = json.loads(bytes(memory_of(caller).read(caller, address, address + length)))
        code, text = fetch(request)
        response = text.encode()
        return code

    def read(caller: wasmtime.Caller, address: int, length: int) -> int:
        memory_of(caller).write(caller, response[:length], address)
        return 0

    for name, call, arity in (
        ("", start, 2),
        ("_response_len", lambda _caller: len(response), 0),
        ("_response_read", read, 2),
    ):
        linker.define_func(
            "sandbox", f"__sandbox_fetch{name}", wasmtime.FuncType([i32] * arity, [i32]), call, access_caller=True
        )


def need(program: str) -> str:
    """The path of the real program to compare with. Without it, skips on a laptop and fails where everything must work."""
    found = shutil.which(program)
    if found is None and os.environ.get("WARMCELL_MUST_WORK"):
        pytest.fail(f"{program} is needed here")
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found
