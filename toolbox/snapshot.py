"""Freeze a Go reactor after its initialisation, so that no run pays for it again.

The module is instantiated once with a deterministic host (fixed clock, fixed random bytes, no files), `_initialize`
runs, and linear memory and globals are written back into the module as its initial state. Go keeps goroutine stacks in
linear memory, so that is all there is to keep. What must differ between runs (arguments, environment, mounts, seeds)
the module reads again in `run`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wasmtime

MAGIC = b"\0asm\1\0\0\0"
PAGE = 4096
WASM_PAGE = 65536
SECTION_IMPORT, SECTION_MEMORY, SECTION_GLOBAL, SECTION_EXPORT, SECTION_START, SECTION_DATA, SECTION_DATA_COUNT = (
    2,
    5,
    6,
    7,
    8,
    11,
    12,
)
I32, I64 = 0x7F, 0x7E
ERRNO_SUCCESS, ERRNO_BADF, ERRNO_NOSYS = 0, 8, 52


def unsigned(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def signed(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        done = (value == 0 and not byte & 0x40) or (value == -1 and byte & 0x40)
        out.append(byte if done else byte | 0x80)
        if done:
            return bytes(out)


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return result, at


@dataclass(frozen=True)
class Global:
    """A defined global: its type, and where its entry stands in the section."""

    kind: int
    is_mutable: bool
    start: int
    end: int


def sections(module: bytes) -> Iterator[tuple[int, bytes]]:
    if module[:8] != MAGIC:
        raise ValueError("not a WASM module")
    at = 8
    while at < len(module):
        number = module[at]
        size, at = read_unsigned(module, at + 1)
        yield number, module[at : at + size]
        at += size


def joined(parts: list[tuple[int, bytes]]) -> bytes:
    return MAGIC + b"".join(bytes([number]) + unsigned(len(body)) + body for number, body in parts)


def read_globals(body: bytes) -> list[Global]:
    count, at = read_unsigned(body, 0)
    found = []
    for _ in range(count):
        start = at
        kind, is_mutable = body[at], bool(body[at + 1])
        opcode = body[at + 2]
        if opcode in (0x43, 0x44):  # f32.const, f64.const
            at += 3 + (4 if opcode == 0x43 else 8)
        else:
            _, at = read_unsigned(body, at + 3)
        if body[at] != 0x0B:
            raise ValueError("a global's initial value is not a plain constant")
        at += 1
        found.append(Global(kind, is_mutable, start, at))
    return found


def export_globals(module: bytes) -> tuple[bytes, dict[str, int]]:
    """Return the module with every mutable global exported, and the names by index."""
    parts = list(sections(module))
    found = read_globals(dict(parts)[SECTION_GLOBAL])
    names = {f"__global_{index}": index for index, one in enumerate(found) if one.is_mutable}
    extra = b"".join(unsigned(len(name)) + name.encode() + b"\x03" + unsigned(index) for name, index in names.items())
    out = []
    for number, body in parts:
        if number == SECTION_EXPORT:
            count, at = read_unsigned(body, 0)
            body = unsigned(count + len(names)) + body[at:] + extra
        out.append((number, body))
    return joined(out), names


def nonzero_runs(memory: bytes) -> list[tuple[int, bytes]]:
    """Split memory into runs of pages that hold something."""
    zero = bytes(PAGE)
    runs: list[tuple[int, bytes]] = []
    start: int | None = None
    for offset in range(0, len(memory) + PAGE, PAGE):
        page = memory[offset : offset + PAGE]
        is_empty = not page or page == zero[: len(page)]
        if is_empty and start is not None:
            runs.append((start, memory[start:offset].rstrip(b"\0")))
            start = None
        elif not is_empty and start is None:
            start = offset
    return runs


def rewrite(module: bytes, memory: bytes, values: dict[int, int]) -> bytes:
    runs = nonzero_runs(memory)
    out = []
    for number, body in sections(module):
        if number == SECTION_START:
            continue
        if number == SECTION_MEMORY:
            flags = body[1]
            _, at = read_unsigned(body, 2)
            body = b"\x01" + bytes([flags]) + unsigned(len(memory) // WASM_PAGE) + body[at:]
        elif number == SECTION_DATA_COUNT:
            body = unsigned(len(runs))
        elif number == SECTION_DATA:
            body = unsigned(len(runs)) + b"".join(
                b"\x00\x41" + signed(offset) + b"\x0b" + unsigned(len(data)) + data for offset, data in runs
            )
        elif number == SECTION_GLOBAL:
            body = frozen_globals(body, values)
        elif number == 0:
            continue
        out.append((number, body))
    return joined(out)


def frozen_globals(body: bytes, values: dict[int, int]) -> bytes:
    found = read_globals(body)
    out = unsigned(len(found))
    for index, one in enumerate(found):
        if index in values and one.kind in (I32, I64):
            out += bytes([one.kind, 1, 0x41 if one.kind == I32 else 0x42]) + signed(values[index]) + b"\x0b"
        else:
            out += body[one.start : one.end]
    return out


class QuietHost:
    """A host without files, time or chance: two builds must give the same bytes."""

    def __init__(self) -> None:
        self.memory: wasmtime.Memory | None = None
        self.store: wasmtime.Store | None = None
        self.ticks = 0

    def write(self, at: int, data: bytes) -> None:
        assert self.memory is not None and self.store is not None
        self.memory.write(self.store, data, at)

    def answer(self, name: str) -> Callable[..., int]:
        def clock(_id: int, _precision: int, into: int) -> int:
            self.ticks += 1_000
            self.write(into, (1_700_000_000_000_000_000 + self.ticks).to_bytes(8, "little"))
            return ERRNO_SUCCESS

        def random(into: int, size: int) -> int:
            self.write(into, bytes((31 * i + 7) & 0xFF for i in range(size)))
            return ERRNO_SUCCESS

        def empty_list(count: int, size: int) -> int:
            self.write(count, bytes(4))
            self.write(size, bytes(4))
            return ERRNO_SUCCESS

        def describe(_fd: int, into: int) -> int:
            self.write(into, bytes(24))
            return ERRNO_SUCCESS

        known: dict[str, Callable[..., int]] = {
            "clock_time_get": clock,
            "random_get": random,
            "args_sizes_get": empty_list,
            "environ_sizes_get": empty_list,
            "args_get": lambda *_: ERRNO_SUCCESS,
            "environ_get": lambda *_: ERRNO_SUCCESS,
            "fd_prestat_get": lambda *_: ERRNO_BADF,
            "fd_fdstat_get": describe,
            "fd_fdstat_set_flags": lambda *_: ERRNO_SUCCESS,
            "sched_yield": lambda *_: ERRNO_SUCCESS,
        }
        return known.get(name, lambda *_: ERRNO_NOSYS)


def link_quiet_host(engine: wasmtime.Engine, module: wasmtime.Module, host: QuietHost) -> wasmtime.Linker:
    linker = wasmtime.Linker(engine)
    linker.allow_shadowing = True  # Go imports some functions from several packages
    for one in module.imports:
        kind = one.type
        assert isinstance(kind, wasmtime.FuncType)
        answer = host.answer(one.name or "")
        if not kind.results:
            answer = _without_result(answer)
        linker.define_func(one.module, one.name or "", kind, answer)
    return linker


def _without_result(answer: Callable[..., int]) -> Callable[..., Any]:
    def call(*args: int) -> None:
        answer(*args)

    return call


def take(plain: bytes) -> bytes:
    """Run `_initialize` and return the module with the state that it reached."""
    exported, names = export_globals(plain)
    engine = wasmtime.Engine()
    module = wasmtime.Module(engine, exported)
    store = wasmtime.Store(engine)
    host = QuietHost()
    host.store = store
    instance = link_quiet_host(engine, module, host).instantiate(store, module)
    exports = instance.exports(store)
    memory = exports["memory"]
    assert isinstance(memory, wasmtime.Memory)
    host.memory = memory
    initialize = exports["_initialize"]
    assert isinstance(initialize, wasmtime.Func)
    initialize(store)
    content = bytes(memory.read(store, 0, memory.data_len(store)))
    values = {}
    for name, index in names.items():
        one = exports[name]
        assert isinstance(one, wasmtime.Global)
        values[index] = one.value(store)
    return rewrite(plain, content, values)


def command_names(snapshotted: bytes) -> list[str]:
    """Ask the finished module which commands it has."""
    engine = wasmtime.Engine()
    module = wasmtime.Module(engine, snapshotted)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    for one in module.imports:
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
        run = linker.instantiate(store, module).exports(store)["run"]
        assert isinstance(run, wasmtime.Func)
        run(store)
        return output.read_text().split()
