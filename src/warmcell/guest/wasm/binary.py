"""Reads the outline of a WebAssembly binary and adds a growth counter to it. Pure: bytes in, bytes out.

wasmtime's limiter refuses `memory.grow` silently, so a guest that dies of it looks like any other crash. The counter is
an added function: every `memory.grow` becomes a call of it, and it records in a global how many pages were refused.
Everything is appended, so no index of the module changes. Memory 0 and that global are exported under reserved names,
so that they can be read whatever the module itself exports.
"""

from __future__ import annotations

MAGIC = b"\0asm"
CORE_VERSION = b"\1\0\0\0"
TYPE, IMPORT, FUNCTION, MEMORY, GLOBAL, EXPORT, START, CODE = 1, 2, 3, 5, 6, 7, 8, 10
#: Sections in the order the format demands; tag (13) and data count (12) are out of numeric order.
_ORDER = (1, 2, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11)
_FUNCTION_KIND, _TABLE_KIND, _MEMORY_KIND, _GLOBAL_KIND, _TAG_KIND = range(5)
MEMORY_NAME = "warmcell:memory"
REFUSED_NAME = "warmcell:refused-pages"
_GROW = b"\x40\x00"
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


class Unreadable(Exception):
    """This reader does not understand the binary; wasmtime reports what is wrong with it, if anything is."""


class Outline:
    """What a run needs to know about a module."""

    def __init__(self, has_start: bool = True) -> None:
        self.imports: list[tuple[str, str]] = []
        self.exports: dict[str, tuple[int, int]] = {}
        self.signatures: list[tuple[bytes, bytes]] = []
        self.function_types: list[int] = []
        self.imported_functions = 0
        self.globals = 0
        self.memories = 0
        self.is_go = False
        self.counts_refusals = False
        #: Instantiating it runs guest code; assumed until the sections were read.
        self.has_start = has_start

    def signature_of_export(self, name: str) -> tuple[bytes, bytes] | None:
        """Parameter and result types of an exported function, or None if there is no such function."""
        kind, index = self.exports.get(name, (None, 0))
        if kind != _FUNCTION_KIND or index >= len(self.function_types):
            return None
        type_index = self.function_types[index]
        return self.signatures[type_index] if type_index < len(self.signatures) else None


def leb128(value: int) -> bytes:
    """Unsigned LEB128."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class Reader:
    """A position in bytes. Running off the end is `Unreadable`."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def number(self) -> int:
        result = shift = 0
        while True:
            byte = self.byte()
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
            if shift > 63:
                raise Unreadable("number too long")

    def byte(self) -> int:
        try:
            value = self.data[self.position]
        except IndexError:
            raise Unreadable("unexpected end") from None
        self.position += 1
        return value

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise Unreadable("unexpected end")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def name(self) -> str:
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError:
            raise Unreadable("name is not UTF-8") from None


def sections(binary: bytes) -> list[tuple[int, bytes]]:
    """Section ids and bodies, in file order."""
    if binary[:8] != MAGIC + CORE_VERSION:
        raise Unreadable("not a core module")
    reader = Reader(binary, 8)
    found = []
    while reader.position < len(binary):
        identity = reader.byte()
        found.append((identity, reader.take(reader.number())))
    return found


def outline(found: list[tuple[int, bytes]]) -> Outline:
    """Imports, exports and signatures of the module with these sections."""
    result = Outline(has_start=any(identity == START for identity, _ in found))
    readers = {TYPE: _types, IMPORT: _imports, FUNCTION: _functions, EXPORT: _exports}
    for identity, body in found:
        reader = Reader(body)
        if identity == 0:
            result.is_go = result.is_go or reader.name() == "go:buildid"
        elif identity == MEMORY:
            result.memories += reader.number()
        elif identity == GLOBAL:
            result.globals += reader.number()
        elif identity in readers:
            readers[identity](reader, result)
    return result


def _types(reader: Reader, result: Outline) -> None:
    for _ in range(reader.number()):
        if reader.byte() != 0x60:
            raise Unreadable("type is not a function type")
        result.signatures.append((reader.take(reader.number()), reader.take(reader.number())))


def _imports(reader: Reader, result: Outline) -> None:
    for _ in range(reader.number()):
        result.imports.append((reader.name(), reader.name()))
        kind = reader.byte()
        if kind == _FUNCTION_KIND:
            result.function_types.append(reader.number())
            result.imported_functions += 1
        elif kind in (_TABLE_KIND, _MEMORY_KIND):
            if kind == _TABLE_KIND:
                reader.byte()
            result.memories += kind == _MEMORY_KIND
            has_maximum = reader.byte() & 1
            reader.number()
            if has_maximum:
                reader.number()
        elif kind == _GLOBAL_KIND:
            reader.take(2)
            result.globals += 1
        else:
            raise Unreadable(f"import of unknown kind {kind}")


def _functions(reader: Reader, result: Outline) -> None:
    for _ in range(reader.number()):
        result.function_types.append(reader.number())


def _exports(reader: Reader, result: Outline) -> None:
    for _ in range(reader.number()):
        name = reader.name()
        result.exports[name] = (reader.byte(), reader.number())


def assemble(found: list[tuple[int, bytes]]) -> bytes:
    """The binary with these sections."""
    return MAGIC + CORE_VERSION + b"".join(bytes([i]) + leb128(len(body)) + body for i, body in found)


def append_entry(found: list[tuple[int, bytes]], identity: int, entry: bytes) -> None:
    """Adds one entry to the vector in a section, and the section if it is missing."""
    for at, (candidate, body) in enumerate(found):
        if candidate == identity:
            reader = Reader(body)
            count = reader.number()
            found[at] = (identity, leb128(count + 1) + body[reader.position :] + entry)
            return
    rank = _ORDER.index(identity)
    at = next((n for n, (i, _) in enumerate(found) if i in _ORDER and _ORDER.index(i) > rank), len(found))
    found.insert(at, (identity, leb128(1) + entry))


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
