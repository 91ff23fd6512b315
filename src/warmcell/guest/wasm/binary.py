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
