"""Adds the growth counter to a module (see `binary`). Pure: bytes in, bytes out."""

from __future__ import annotations

from wasm.binary import (
    CODE,
    EXPORT,
    FUNCTION,
    GLOBAL,
    MEMORY_NAME,
    REFUSED_NAME,
    TYPE,
    Outline,
    Reader,
    Unreadable,
    append_entry,
    assemble,
    leb128,
    outline,
    sections,
)

_GROW = b"\x40\x00"
_MEMORY_KIND, _GLOBAL_KIND = 2, 3
_CALL = 0x10

#: How many LEB128 numbers follow an opcode. Opcodes not listed have none or are handled below.
_NUMBERS = {
    **dict.fromkeys((0x02, 0x03, 0x04, 0x0C, 0x0D, 0x10, 0x12, 0x3F, 0x40, 0x41, 0x42, 0xD0, 0xD2), 1),
    **dict.fromkeys(range(0x20, 0x27), 1),
    **dict.fromkeys((0x11, 0x13), 2),
    **dict.fromkeys(range(0x28, 0x3F), 2),
}
_PLAIN = frozenset((0x00, 0x01, 0x05, 0x0B, 0x0F, 0x1A, 0x1B, 0xD1, *range(0x45, 0xC5)))
_BULK_NUMBERS = {8: 2, 9: 1, 10: 2, 11: 1, 12: 2, 13: 1, 14: 2, 15: 1, 16: 1, 17: 1, **dict.fromkeys(range(8), 0)}


def add_growth_counter(binary: bytes) -> tuple[bytes, Outline]:
    """The module with its memory exported and refused growth counted, and its outline.

    Raises `Unreadable` for unknown instructions; the caller then runs the original module.
    """
    found = sections(binary)
    shape = outline(found)
    if not shape.memories or shape.exports.keys() & {MEMORY_NAME, REFUSED_NAME}:
        return binary, shape
    append_entry(found, EXPORT, _export(MEMORY_NAME, _MEMORY_KIND, 0))
    if _replace_growth(found, len(shape.function_types)):
        _append_counter(found, shape)
        shape.counts_refusals = True
    return assemble(found), shape


def _export(name: str, kind: int, index: int) -> bytes:
    encoded = name.encode()
    return leb128(len(encoded)) + encoded + bytes([kind]) + leb128(index)


def _append_counter(found: list[tuple[int, bytes]], shape: Outline) -> None:
    append_entry(found, TYPE, b"\x60\x01\x7f\x01\x7f")
    append_entry(found, FUNCTION, leb128(len(shape.signatures)))
    append_entry(found, GLOBAL, b"\x7e\x01\x42\x00\x0b")
    append_entry(found, EXPORT, _export(REFUSED_NAME, _GLOBAL_KIND, shape.globals))
    body = _counter_body(leb128(shape.globals))
    append_entry(found, CODE, leb128(len(body)) + body)


def _counter_body(counter: bytes) -> bytes:
    """`old = memory.grow(pages); if old == -1: counter = memory.size + pages; return old`"""
    pages, old = b"\x20\x00", b"\x20\x01"
    wanted = b"\x3f\x00\xad" + pages + b"\xad\x7c"
    note = b"\x04\x40" + wanted + b"\x24" + counter + b"\x0b"
    return b"\x01\x01\x7f" + pages + _GROW + b"\x22\x01\x41\x7f\x46" + note + old + b"\x0b"


def _replace_growth(found: list[tuple[int, bytes]], counter: int) -> bool:
    at = next((n for n, (identity, _) in enumerate(found) if identity == CODE), None)
    if at is None or _GROW not in found[at][1]:
        return False
    reader = Reader(found[at][1])
    count = reader.number()
    bodies, has_growth = [], False
    for _ in range(count):
        body = reader.take(reader.number())
        places = _growth_places(body) if _GROW in body else []
        has_growth = has_growth or bool(places)
        bodies.append(_with_calls(body, places, counter) if places else body)
    if has_growth:
        found[at] = (CODE, leb128(count) + b"".join(leb128(len(body)) + body for body in bodies))
    return has_growth


def _with_calls(body: bytes, places: list[int], counter: int) -> bytes:
    call = bytes([_CALL]) + leb128(counter)
    pieces, start = [], 0
    for place in places:
        pieces.append(body[start:place])
        start = place + len(_GROW)
    return call.join([*pieces, body[start:]])


def _growth_places(body: bytes) -> list[int]:
    reader = Reader(body)
    for _ in range(reader.number()):
        reader.number()
        reader.byte()
    places = []
    while reader.position < len(body):
        start = reader.position
        opcode = reader.byte()
        if opcode == 0x40:
            places.append(start)
        _skip_operands(reader, opcode)
    return places


def _skip_operands(reader: Reader, opcode: int) -> None:
    if opcode in _PLAIN:
        return
    if opcode in _NUMBERS:
        _skip_numbers(reader, _NUMBERS[opcode])
    elif opcode == 0x0E:
        _skip_numbers(reader, reader.number() + 1)
    elif opcode == 0x1C:
        reader.take(reader.number())
    elif opcode in (0x43, 0x44):
        reader.take(4 if opcode == 0x43 else 8)
    elif opcode == 0xFC:
        operation = reader.number()
        if operation not in _BULK_NUMBERS:
            raise Unreadable(f"unknown instruction fc {operation}")
        _skip_numbers(reader, _BULK_NUMBERS[operation])
    elif opcode == 0xFD:
        _skip_vector_operands(reader, reader.number())
    else:
        raise Unreadable(f"unknown instruction {opcode:#x}")


def _skip_vector_operands(reader: Reader, operation: int) -> None:
    if operation in (12, 13):
        reader.take(16)
    elif operation <= 11 or 84 <= operation <= 93:
        _skip_numbers(reader, 2)
    if 21 <= operation <= 34 or 84 <= operation <= 91:
        reader.byte()


def _skip_numbers(reader: Reader, count: int) -> None:
    data, position = reader.data, reader.position
    try:
        for _ in range(count):
            while data[position] & 0x80:
                position += 1
            position += 1
    except IndexError:
        raise Unreadable("unexpected end") from None
    reader.position = position
