"""Run a WASI reactor's initialisation once, at build time, and write its memory and globals back into the module.

The result starts where the initialisation ended: no heap to build, nothing to parse. The initialisation sees a fixed
world (no arguments, no environment, no files, a clock that stands still, random bytes that are all zero), so that the
same input always gives the same bytes; a module has to ask for these things again on every run.

Works for modules with one memory and active data segments only, which is what C and Go compilers emit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import wasmtime

PAGE = 4096
WASM_PAGE = 65536
HEADER = b"\0asm\1\0\0\0"
GLOBAL_PREFIX = "__snapshot_global_"
SECTION_IMPORT, SECTION_MEMORY, SECTION_GLOBAL, SECTION_EXPORT = 2, 5, 6, 7
SECTION_START, SECTION_DATA, SECTION_DATA_COUNT = 8, 11, 12
KIND_FUNCTION, KIND_TABLE, KIND_MEMORY, KIND_GLOBAL = 0, 1, 2, 3
I32, I64, F32, F64 = 0x7F, 0x7E, 0x7D, 0x7C
OPCODE_I32_CONST, OPCODE_I64_CONST, OPCODE_F32_CONST, OPCODE_F64_CONST, OPCODE_END = 0x41, 0x42, 0x43, 0x44, 0x0B


def take_snapshot(wasm: bytes, initialisers: tuple[str, ...], entry: str) -> bytes:
    """The module after calling `initialisers` in order; only `memory` and `entry` stay exported."""
    sections = list(parse_sections(wasm))
    mutable_globals = [g for g in parse_globals(sections) if g.is_mutable and g.type in (I32, I64)]
    live = run_initialisers(export_globals(sections, mutable_globals), initialisers, [g.index for g in mutable_globals])
    return assemble(rewrite(sections, live, entry))


@dataclass(frozen=True)
class LiveState:
    memory: bytes
    globals: dict[int, int]


@dataclass(frozen=True)
class Global:
    index: int  # in the module's index space, imported globals first
    type: int
    is_mutable: bool
    encoded: bytes


# ---- the fixed world in which initialisation runs ----


def run_initialisers(wasm: bytes, names: tuple[str, ...], global_indexes: list[int]) -> LiveState:
    engine = wasmtime.Engine()
    module = wasmtime.Module(engine, wasm)
    store = wasmtime.Store(engine)
    instance = wasmtime.Instance(store, module, [stub(store, item) for item in module.imports])
    exports = instance.exports(store)
    for name in names:
        function = exports.get(name)
        if function is None:
            continue
        assert isinstance(function, wasmtime.Func)
        result = function(store)
        if result:
            raise RuntimeError(f"{name}() returned {result}")
    memory = exports["memory"]
    assert isinstance(memory, wasmtime.Memory)
    values = {}
    for index in global_indexes:
        item = exports[f"{GLOBAL_PREFIX}{index}"]
        assert isinstance(item, wasmtime.Global)
        values[index] = int(item.value(store))
    return LiveState(bytes(memory.read(store, 0, memory.data_len(store))), values)


def stub(store: wasmtime.Store, item: wasmtime.ImportType) -> wasmtime.Func:
    """An import that answers without a host: clocks, random bytes and empty lists work, the rest is an error."""
    kind = item.type
    assert isinstance(kind, wasmtime.FuncType)
    answer = ANSWERS.get(item.name or "")

    def call(caller: wasmtime.Caller, *args: int) -> int | None:
        if answer is None:
            raise RuntimeError(f"initialisation called {item.module}.{item.name}")
        return answer(caller, *args)

    return wasmtime.Func(store, kind, call, access_caller=True)


def _write(caller: wasmtime.Caller, address: int, data: bytes) -> None:
    memory = caller.get("memory")
    assert isinstance(memory, wasmtime.Memory)
    memory.write(caller, data, address & 0xFFFFFFFF)


def _nothing_there(caller: wasmtime.Caller, count: int, size: int) -> int:
    _write(caller, count, bytes(4))
    _write(caller, size, bytes(4))
    return 0


def _clock(caller: wasmtime.Caller, _id: int, _precision: int, result: int) -> int:
    _write(caller, result, (1_000_000_000).to_bytes(8, "little"))
    return 0


def _random(caller: wasmtime.Caller, address: int, length: int) -> int:
    _write(caller, address, bytes(length))
    return 0


def _print(caller: wasmtime.Caller, fd: int, vectors: int, count: int, result: int) -> int:
    memory = caller.get("memory")
    assert isinstance(memory, wasmtime.Memory)
    total = 0
    for i in range(count):
        entry = bytes(memory.read(caller, vectors + 8 * i, vectors + 8 * i + 8))
        address, length = int.from_bytes(entry[:4], "little"), int.from_bytes(entry[4:], "little")
        print(bytes(memory.read(caller, address, address + length)).decode("utf-8", "replace"), end="", flush=True)
        total += length
    _write(caller, result, total.to_bytes(4, "little"))
    return 0


EBADF = 8
ANSWERS: dict[str, Callable[..., int | None]] = {
    "args_sizes_get": _nothing_there,
    "environ_sizes_get": _nothing_there,
    "args_get": lambda *_: 0,
    "environ_get": lambda *_: 0,
    "clock_time_get": _clock,
    "random_get": _random,
    "fd_write": _print,
    "fd_prestat_get": lambda *_: EBADF,
    "fd_fdstat_get": lambda *_: EBADF,
    "fd_fdstat_set_flags": lambda *_: EBADF,
    "sched_yield": lambda *_: 0,
}


# ---- the binary format ----


def parse_sections(wasm: bytes) -> Iterator[tuple[int, bytes]]:
    if wasm[:8] != HEADER:
        raise ValueError("not a core WebAssembly module")
    at = 8
    while at < len(wasm):
        identifier = wasm[at]
        size, at = read_unsigned(wasm, at + 1)
        yield identifier, wasm[at : at + size]
        at += size


def assemble(sections: list[tuple[int, bytes]]) -> bytes:
    return HEADER + b"".join(bytes([identifier]) + encode_unsigned(len(body)) + body for identifier, body in sections)


def parse_globals(sections: list[tuple[int, bytes]]) -> list[Global]:
    body = dict(sections).get(SECTION_GLOBAL, b"\0")
    first = count_imported_globals(dict(sections).get(SECTION_IMPORT, b"\0"))
    count, at = read_unsigned(body, 0)
    found = []
    for offset in range(count):
        end = end_of_constant(body, at + 2)
        found.append(Global(first + offset, body[at], bool(body[at + 1]), body[at:end]))
        at = end
    return found


def count_imported_globals(body: bytes) -> int:
    count, at = read_unsigned(body, 0)
    total = 0
    for _ in range(count):
        for _part in range(2):
            length, at = read_unsigned(body, at)
            at += length
        kind = body[at]
        at += 1
        if kind == KIND_FUNCTION:
            _, at = read_unsigned(body, at)
        elif kind == KIND_GLOBAL:
            at += 2
            total += 1
        else:
            raise ValueError("imported tables and memories are not supported")
    return total


def end_of_constant(body: bytes, at: int) -> int:
    opcode = body[at]
    if opcode == OPCODE_F32_CONST:
        end = at + 5
    elif opcode == OPCODE_F64_CONST:
        end = at + 9
    else:
        _, end = read_unsigned(body, at + 1)
    if body[end] != OPCODE_END:
        raise ValueError("unsupported constant expression")
    return end + 1


def export_globals(sections: list[tuple[int, bytes]], globals_: list[Global]) -> bytes:
    entries = []
    for item in globals_:
        name = f"{GLOBAL_PREFIX}{item.index}".encode()
        entries.append(encode_unsigned(len(name)) + name + bytes([KIND_GLOBAL]) + encode_unsigned(item.index))

    def extend(body: bytes) -> bytes:
        count, at = read_unsigned(body, 0)
        return encode_unsigned(count + len(entries)) + body[at:] + b"".join(entries)

    return assemble([(i, extend(body) if i == SECTION_EXPORT else body) for i, body in sections])


def rewrite(sections: list[tuple[int, bytes]], live: LiveState, entry: str) -> list[tuple[int, bytes]]:
    segments = list(data_segments(live.memory))
    written = []
    for identifier, body in sections:
        if identifier == SECTION_START or identifier == 0:  # custom sections (names, producers) go too
            continue
        if identifier == SECTION_MEMORY:
            body = resize_memory(body, len(live.memory) // WASM_PAGE)
        elif identifier == SECTION_GLOBAL:
            body = freeze_globals(parse_globals(sections), live.globals)
        elif identifier == SECTION_EXPORT:
            body = filter_exports(body, {"memory", entry})
        elif identifier == SECTION_DATA_COUNT:
            body = encode_unsigned(len(segments))
        elif identifier == SECTION_DATA:
            check_active_only(body)
            body = encode_unsigned(len(segments)) + b"".join(encode_segment(*segment) for segment in segments)
        written.append((identifier, body))
    return written


def resize_memory(body: bytes, pages: int) -> bytes:
    count, at = read_unsigned(body, 0)
    if count != 1:
        raise ValueError("exactly one memory is supported")
    flags = body[at]
    _, at = read_unsigned(body, at + 1)
    return b"\1" + bytes([flags]) + encode_unsigned(pages) + body[at:]


def freeze_globals(globals_: list[Global], values: dict[int, int]) -> bytes:
    out = encode_unsigned(len(globals_))
    for item in globals_:
        if item.index not in values:
            out += item.encoded
            continue
        opcode = OPCODE_I32_CONST if item.type == I32 else OPCODE_I64_CONST
        out += bytes([item.type, 1, opcode]) + encode_signed(values[item.index]) + bytes([OPCODE_END])
    return out


def filter_exports(body: bytes, wanted: set[str]) -> bytes:
    count, at = read_unsigned(body, 0)
    kept = []
    for _ in range(count):
        start = at
        length, at = read_unsigned(body, at)
        name = body[at : at + length].decode()
        _, at = read_unsigned(body, at + length + 1)
        if name in wanted:
            kept.append(body[start:at])
    return encode_unsigned(len(kept)) + b"".join(kept)


def check_active_only(body: bytes) -> None:
    count, at = read_unsigned(body, 0)
    for _ in range(count):
        flag, at = read_unsigned(body, at)
        if flag != 0:
            raise ValueError("passive data segments are not supported")
        at = end_of_constant(body, at)
        length, at = read_unsigned(body, at)
        at += length


def data_segments(memory: bytes) -> Iterator[tuple[int, bytes]]:
    """Runs of pages that are not all zero, as (address, bytes)."""
    zero = bytes(PAGE)
    start = None
    for at in range(0, len(memory) + PAGE, PAGE):
        is_used = at < len(memory) and memory[at : at + PAGE] != zero
        if is_used and start is None:
            start = at
        elif not is_used and start is not None:
            yield start, memory[start:at].rstrip(b"\0")
            start = None


def encode_segment(address: int, data: bytes) -> bytes:
    offset = address if address < 2**31 else address - 2**32
    return (
        b"\0"
        + bytes([OPCODE_I32_CONST])
        + encode_signed(offset)
        + bytes([OPCODE_END])
        + encode_unsigned(len(data))
        + data
    )


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def encode_unsigned(value: int) -> bytes:
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        if not value:
            return bytes(out + bytes([byte]))
        out.append(byte | 0x80)


def encode_signed(value: int) -> bytes:
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        if (value == 0 and not byte & 0x40) or (value == -1 and byte & 0x40):
            return bytes(out + bytes([byte]))
        out.append(byte | 0x80)
