"""Runs the Python component like a host.

The component exports `run(argv, env, cwd, seed) -> s32`, which returns the exit status. Arguments, environment and
working directory are parameters, because the snapshot inside the component froze Python's own copies of them. Standard
streams and directories come from WASI.

Limits: `memory_bytes` through the Store (growth beyond it is a MemoryError inside Python, or a trap); the epoch
deadline, in ticks of the engine's epoch (ends with a `wasmtime.WasmtimeError` whose text has "wasm trap: interrupt");
fuel, if the engine counts it ("all fuel consumed"). None of them interrupts a read from an idle pipe: close the other
end, or kill the worker. `time.sleep` sleeps in steps of 20 ms, so that the epoch can interrupt it.
The engine needs `max_wasm_stack` of at least 1 MiB, so that Python's recursion limit of 1000 is reached first.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import wasmtime
import wasmtime.component

EXPORT = "run"


@dataclass(frozen=True)
class Preopen:
    """A directory of the host that the guest sees under `guest_path`."""

    host_path: Path
    guest_path: str
    is_writable: bool = False


def make_linker(engine: wasmtime.Engine) -> wasmtime.component.Linker:
    """WASI preview 2 and nothing else. One linker serves any number of runs on its engine."""
    linker = wasmtime.component.Linker(engine)
    linker.add_wasip2()
    return linker


def run_component(
    engine: wasmtime.Engine,
    component: wasmtime.component.Component,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    stdin_fd: int | None,
    stdout_fd: int,
    stderr_fd: int,
    preopens: Iterable[Preopen],
    *,
    epoch_ticks: int | None = None,
    fuel: int | None = None,
    memory_bytes: int | None = None,
    linker: wasmtime.component.Linker | None = None,
) -> int:
    """Run one command line in a fresh instance and return its exit status (0..255).

    `argv[0]` is "python3". The descriptors stay the caller's to close; `stdin_fd=None` is an empty standard input.
    Raises `wasmtime.WasmtimeError` or `wasmtime.Trap` when a limit or the runtime ended the guest; output written up to
    then is in the pipes. Blocks the calling thread, with the GIL released while the guest computes.
    """
    store = wasmtime.Store(engine)
    if memory_bytes is not None:
        store.set_limits(memory_size=memory_bytes)
    if fuel is not None:
        store.set_fuel(fuel)
    if epoch_ticks is not None:
        store.set_epoch_deadline(epoch_ticks)
    store.set_wasi(wasi_config(stdin_fd, stdout_fd, stderr_fd, preopens))
    instance = (linker or make_linker(engine)).instantiate(store, component)
    function = instance.get_func(store, EXPORT)
    if function is None:
        raise ValueError(f"the component has no export {EXPORT!r}")
    status = function(store, list(argv), [(key, value) for key, value in env.items()], cwd, secrets.token_bytes(32))
    function.post_return(store)
    return int(status)


def wasi_config(
    stdin_fd: int | None, stdout_fd: int, stderr_fd: int, preopens: Iterable[Preopen]
) -> wasmtime.WasiConfig:
    config = wasmtime.WasiConfig()
    if stdin_fd is not None:
        config.stdin_file = f"/dev/fd/{stdin_fd}"
    config.stdout_file = f"/dev/fd/{stdout_fd}"
    config.stderr_file = f"/dev/fd/{stderr_fd}"
    for each in preopens:
        config.preopen_dir(str(each.host_path), each.guest_path, each.is_writable)
    return config
