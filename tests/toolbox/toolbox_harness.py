"""Runs the toolbox module like a host: one engine, one compiled module, a new store per command."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

wasmtime = pytest.importorskip("wasmtime")

ROOT = Path(__file__).resolve().parents[2]
ARTEFACT = ROOT / "src" / "warmcell" / "toolbox" / "toolbox.wasm"
MUST_WORK = os.environ.get("WARMCELL_MUST_WORK") == "1"


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "surrogateescape")

    @property
    def errors(self) -> str:
        return self.stderr.decode("utf-8", "surrogateescape")


@dataclass
class Host:
    """Responses of the two host calls. A call without a response is disabled."""

    responses: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, bytes]] = field(default_factory=list)


@lru_cache(maxsize=1)
def compile_toolbox() -> tuple[Any, Any]:
    config = wasmtime.Config()
    config.epoch_interruption = True
    config.cache = True
    engine = wasmtime.Engine(config)
    return engine, wasmtime.Module(engine, ARTEFACT.read_bytes())


def _define_host(linker: Any, module: Any, host: Host) -> None:
    answers: dict[str, bytes] = {}

    def call(name: str) -> Any:
        def run(caller: Any, pointer: int, size: int) -> int:
            memory = caller["memory"]
            host.requests.append((name, bytes(memory.read(caller, pointer, pointer + size))))
            off = b'{"error":{"code":"disabled","message":"networking is disabled"}}'
            answers[name] = host.responses.get(name, off)
            return 0 if name in host.responses else -2

        return run

    def read(name: str) -> Any:
        def run(caller: Any, pointer: int, size: int) -> int:
            data = answers.get(name, b"")[:size]
            caller["memory"].write(caller, data, pointer)
            return len(data)

        return run

    for one in module.imports:
        if one.module != "sandbox":
            continue
        base = one.name.removesuffix("_response_len").removesuffix("_response_read")
        if one.name.endswith("_response_len"):
            linker.define_func("sandbox", one.name, one.type, lambda base=base: len(answers.get(base, b"")))
        elif one.name.endswith("_response_read"):
            linker.define_func("sandbox", one.name, one.type, read(base), access_caller=True)
        else:
            linker.define_func("sandbox", one.name, one.type, call(base), access_caller=True)


def run(
    argv: list[str],
    mounts: dict[str, Path] | None = None,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    host: Host | None = None,
    memory_mb: int = 512,
    ticks: int = 3000,
) -> Ended:
    """Run one command in a fresh instance. An epoch ticks every 10 ms, so the default bound is 30 seconds."""
    engine, module = compile_toolbox()
    store = wasmtime.Store(engine)
    store.set_limits(memory_size=memory_mb << 20)
    store.set_epoch_deadline(ticks)
    wasi = wasmtime.WasiConfig()
    wasi.argv = argv
    wasi.env = list({"PATH": "/usr/bin:/bin", "HOME": "/work", "PWD": "/work", **(env or {})}.items())
    for guest, path in (mounts or {}).items():
        wasi.preopen_dir(str(path), guest, True)
    with tempfile.TemporaryDirectory(prefix="streams-") as scratch:
        files = {name: Path(scratch) / name for name in ("stdin", "stdout", "stderr")}
        files["stdin"].write_bytes(stdin)
        wasi.stdin_file, wasi.stdout_file, wasi.stderr_file = (
            str(files[name]) for name in ("stdin", "stdout", "stderr")
        )
        store.set_wasi(wasi)
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        _define_host(linker, module, host or Host())
        function = linker.instantiate(store, module).exports(store)["run"]
        try:
            code = function(store)
        except wasmtime.ExitTrap as end:
            code = end.code
        except (wasmtime.Trap, wasmtime.WasmtimeError) as problem:
            code = -1
            with files["stderr"].open("ab") as errors:
                errors.write(str(problem).encode())
        return Ended(code, files["stdout"].read_bytes(), files["stderr"].read_bytes())


def ticking() -> Any:
    """Start the epoch clock; stop it by calling the result."""
    import threading

    engine, _ = compile_toolbox()
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.01):
            engine.increment_epoch()

    threading.Thread(target=tick, daemon=True).start()
    return stop.set


if sys.platform == "win32":
    pytest.skip("the toolbox tests compare with GNU tools", allow_module_level=True)
