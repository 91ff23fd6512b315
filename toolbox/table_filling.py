"""Adds a function `fill_table` to a Go module. It resolves the table entries that nearly every run needs.

wasmtime resolves an entry at its first call through the table, in every instance, and searches all functions of the
module for it: a tenth of the time of a small pipeline. A worker calls `fill_table` in advance, in an instance that
waits for its run. To find the functions, a copy of the module in which every function records its call runs the
rehearsal, in the fixed environment of the snapshot.
"""

from __future__ import annotations

import wasmtime
from wasm_snapshot import (
    GLOBAL_PREFIX,
    I32,
    KIND_FUNCTION,
    KIND_GLOBAL,
    OPCODE_END,
    OPCODE_I32_CONST,
    SECTION_EXPORT,
    SECTION_GLOBAL,
    SECTION_IMPORT,
    assemble,
    encode_signed,
    encode_unsigned,
    end_of_constant,
    parse_globals,
    parse_sections,
    read_unsigned,
    stub,
)

NAME = "fill_table"
SECTION_TYPE, SECTION_FUNCTION, SECTION_ELEMENT, SECTION_CODE = 1, 3, 9, 10
FUNCTION_TYPE = 0x60
OPCODE_DROP, OPCODE_GLOBAL_SET, OPCODE_TABLE_GET = 0x1A, 0x24, 0x25
Sections = list[tuple[int, bytes]]


def find_called_functions(wasm: bytes, initialiser: str, rehearsal: str) -> set[int]:
    """The indices of the module's own functions that the rehearsal calls."""
    sections = list(parse_sections(wasm))
    first_mark = len(parse_globals(sections))
    bodies = list(function_bodies(dict(sections)[SECTION_CODE]))
    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    module = wasmtime.Module(engine, assemble(add_marks(sections, bodies, first_mark)))
    exports = wasmtime.Instance(store, module, [stub(store, item) for item in module.imports]).exports(store)
    marks = [exports[f"{GLOBAL_PREFIX}{first_mark + at}"] for at in range(len(bodies))]
    call(store, exports[initialiser])
    for mark in marks:
        assert isinstance(mark, wasmtime.Global)
        mark.set_value(store, 0)
    call(store, exports[rehearsal])
    imported = count_imported_functions(dict(sections).get(SECTION_IMPORT, b"\0"))
    return {imported + at for at, mark in enumerate(marks) if isinstance(mark, wasmtime.Global) and mark.value(store)}


def call(store: wasmtime.Store, function: object) -> None:
    assert isinstance(function, wasmtime.Func)
    if result := function(store):
        raise RuntimeError(f"a rehearsal returned {result}")


def add_marks(sections: Sections, bodies: list[bytes], first_mark: int) -> Sections:
    """Makes every function set its own global to 1 when it is called."""
    marks = [first_mark + at for at in range(len(bodies))]
    written: Sections = []
    for identifier, body in sections:
        if identifier == SECTION_GLOBAL:
            body = append_entries(body, [bytes([I32, 1, OPCODE_I32_CONST, 0, OPCODE_END])] * len(marks))
        elif identifier == SECTION_EXPORT:
            body = append_entries(body, [export_entry(f"{GLOBAL_PREFIX}{mark}", KIND_GLOBAL, mark) for mark in marks])
        elif identifier == SECTION_CODE:
            body = append_entries(
                b"\0", [with_size(with_mark(code, mark)) for code, mark in zip(bodies, marks, strict=True)]
            )
        written.append((identifier, body))
    return written


def with_mark(code: bytes, mark: int) -> bytes:
    count, at = read_unsigned(code, 0)
    for _ in range(count):  # groups of locals: count, type
        _, at = read_unsigned(code, at)
        at += 1
    return code[:at] + bytes([OPCODE_I32_CONST, 1, OPCODE_GLOBAL_SET]) + encode_unsigned(mark) + code[at:]


def with_table_filling(wasm: bytes, functions: set[int]) -> bytes:
    """The module with the added function and its export. No index changes."""
    sections = list(parse_sections(wasm))
    by_identifier = dict(sections)
    slots = [slot for slot, function in table_slots(by_identifier[SECTION_ELEMENT]) if function in functions]
    own_type, _ = read_unsigned(by_identifier[SECTION_TYPE], 0)
    defined, _ = read_unsigned(by_identifier[SECTION_FUNCTION], 0)
    own_index = count_imported_functions(by_identifier.get(SECTION_IMPORT, b"\0")) + defined
    steps = [
        bytes([OPCODE_I32_CONST]) + encode_signed(slot) + bytes([OPCODE_TABLE_GET, 0, OPCODE_DROP]) for slot in slots
    ]
    added = {
        SECTION_TYPE: bytes([FUNCTION_TYPE, 0, 0]),
        SECTION_FUNCTION: encode_unsigned(own_type),
        SECTION_EXPORT: export_entry(NAME, KIND_FUNCTION, own_index),
        SECTION_CODE: with_size(b"\0" + b"".join(steps) + bytes([OPCODE_END])),
    }
    return assemble([(i, append_entries(body, [added[i]]) if i in added else body) for i, body in sections])


def table_slots(body: bytes) -> list[tuple[int, int]]:
    """Pairs of table slot and function, from Go's only element segment."""
    count, at = read_unsigned(body, 0)
    if count != 1 or body[at] != 0 or body[at + 1] != OPCODE_I32_CONST:
        raise ValueError("only one active element segment is supported")
    first, _ = read_unsigned(body, at + 2)
    size, at = read_unsigned(body, end_of_constant(body, at + 1))
    found = []
    for slot in range(first, first + size):
        function, at = read_unsigned(body, at)
        found.append((slot, function))
    return found


def function_bodies(body: bytes) -> list[bytes]:
    count, at = read_unsigned(body, 0)
    found = []
    for _ in range(count):
        size, at = read_unsigned(body, at)
        found.append(body[at : at + size])
        at += size
    return found


def count_imported_functions(body: bytes) -> int:
    """Go imports nothing else."""
    return read_unsigned(body, 0)[0]


def append_entries(body: bytes, entries: list[bytes]) -> bytes:
    count, at = read_unsigned(body, 0)
    return encode_unsigned(count + len(entries)) + body[at:] + b"".join(entries)


def with_size(code: bytes) -> bytes:
    return encode_unsigned(len(code)) + code


def export_entry(name: str, kind: int, index: int) -> bytes:
    return with_size(name.encode()) + bytes([kind]) + encode_unsigned(index)
