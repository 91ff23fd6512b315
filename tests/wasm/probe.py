"""Builds guests that make WASI calls in sequence and print every errno."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_RESULTS = 40_000
_TEXTS = 2_048
#: Parameter types of the preview 1 calls that the tests use: i is i32, I is i64.
SIGNATURES = {
    "args_get": "ii",
    "args_sizes_get": "ii",
    "clock_time_get": "iIi",
    "environ_get": "ii",
    "environ_sizes_get": "ii",
    "fd_close": "i",
    "fd_fdstat_get": "ii",
    "fd_filestat_get": "ii",
    "fd_filestat_set_size": "iI",
    "fd_prestat_dir_name": "iii",
    "fd_prestat_get": "ii",
    "fd_read": "iiii",
    "fd_readdir": "iiiIi",
    "fd_renumber": "ii",
    "fd_seek": "iIii",
    "fd_tell": "ii",
    "fd_write": "iiii",
    "path_create_directory": "iii",
    "path_filestat_get": "iiiii",
    "path_filestat_set_times": "iiiiIIi",
    "path_link": "iiiiiii",
    "path_open": "iiiiiIIii",
    "path_readlink": "iiiiii",
    "path_remove_directory": "iii",
    "path_rename": "iiiiii",
    "path_symlink": "iiiii",
    "path_unlink_file": "iii",
    "poll_oneoff": "iiii",
    "random_get": "ii",
    "sock_accept": "iii",
    "sock_send": "iiiii",
}
CREATE, DIRECTORY, EXCLUSIVE, TRUNCATE = 1, 2, 4, 8
READ, WRITE, ALL_RIGHTS = 1 << 1, 1 << 6, (1 << 29) - 1
FOLLOW = 1
SUCCESS, BADF, EXIST, INVAL, NOENT, NOTDIR, NOTEMPTY, PERM = 0, 8, 20, 28, 44, 54, 55, 63
NOTCAPABLE = 76


@dataclass(frozen=True)
class At:
    """The i32 at an address at the time of the call: a descriptor that an earlier call opened."""

    address: int


class Probe:
    """Calls in order; `decode` turns the guest's output into the list of errnos and the dumped memory."""

    def __init__(self) -> None:
        self._texts: list[tuple[int, bytes]] = []
        self._next_text = _TEXTS
        self._steps: list[str] = []
        self._used: set[str] = {"fd_write"}
        self.calls = 0
        self._dumps: list[int] = []

    def text(self, value: str | bytes) -> tuple[int, int]:
        """Pointer and length of a text in the guest's memory."""
        data = value.encode() if isinstance(value, str) else value
        address, self._next_text = self._next_text, self._next_text + len(data) + 1
        self._texts.append((address, data))
        return address, len(data)

    def call(self, name: str, *arguments: int | At) -> int:
        """Adds a call and returns its index in the list of errnos."""
        kinds = SIGNATURES[name]
        assert len(kinds) == len(arguments), name
        self._used.add(name)
        given = " ".join(_operand(kind, argument) for kind, argument in zip(kinds, arguments, strict=True))
        self._steps.append(f"(i32.store (i32.const {_RESULTS + 4 * self.calls}) (call ${name} {given}))")
        self.calls += 1
        return self.calls - 1

    def open(self, directory: int | At, path: str, out: int, *, flags: int = 0, rights: int = READ) -> int:
        return self.call("path_open", directory, FOLLOW, *self.text(path), flags, rights, 0, 0, out)

    def store(self, address: int, value: int) -> None:
        self._steps.append(f"(i32.store (i32.const {address}) (i32.const {value}))")

    def vector(self, address: int, pointer: int, length: int) -> None:
        """An iovec."""
        self.store(address, pointer)
        self.store(address + 4, length)

    def dump(self, address: int, length: int) -> None:
        """Prints this memory after the errnos."""
        self._dumps.append(length)
        self._steps.append(f"(call $print (i32.const {address}) (i32.const {length}))")

    def wat(self) -> str:
        imports = "\n".join(
            f'(import "wasi_snapshot_preview1" "{name}" (func ${name} (param {_types(SIGNATURES[name])}) (result i32)))'
            for name in sorted(self._used)
        )
        data = "\n".join(f'(data (i32.const {address}) "{_escape(text)}")' for address, text in self._texts)
        steps = [step for step in self._steps if "$print" not in step]
        dumps = [step for step in self._steps if "$print" in step]
        return f"""(module {imports}
 (memory (export "memory") 2) {data}
 (func $print (param i32 i32)
  (i32.store (i32.const 0) (local.get 0)) (i32.store (i32.const 4) (local.get 1))
  (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))
 (func (export "_start") {" ".join(steps)}
  (call $print (i32.const {_RESULTS}) (i32.const {4 * self.calls})) {" ".join(dumps)}))"""

    def decode(self, output: bytes) -> tuple[list[int], list[bytes]]:
        errnos = list(struct.unpack(f"<{self.calls}I", output[: 4 * self.calls]))
        dumps, at = [], 4 * self.calls
        for length in self._dumps:
            dumps.append(output[at : at + length])
            at += length
        return errnos, dumps


def _operand(kind: str, argument: int | At) -> str:
    if isinstance(argument, At):
        return f"(i32.load (i32.const {argument.address}))"
    return f"({'i64' if kind == 'I' else 'i32'}.const {argument})"


def _types(signature: str) -> str:
    return " ".join("i64" if kind == "I" else "i32" for kind in signature)


def _escape(data: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in data)
