"""A guest gives its Unix sockets any names, and the kernel writes them into its table as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmcell.cage.watching import kernel_memory, usage

_TABLE = b"""Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00000000 0001 01 4711 @a
1 2 3 4 5 6 inode \xff
0000000000000000: 00000002 00000000 00000000 0001 01 4712
"""


@pytest.mark.attack("RX-02")
def test_a_name_with_a_line_break_or_that_is_no_text_ends_no_look(tmp_path: Path) -> None:
    """It would end the watcher, and with it the guests of all others."""
    (tmp_path / "unix").write_bytes(_TABLE)
    (tmp_path / "sockstat").write_text("sockets: used 100\nTCP: inuse 0\nUDP: inuse 0\n")
    assert kernel_memory.unix_sockets(str(tmp_path)) == [4711, 4712]
    assert usage.socket_buffers(str(tmp_path)) == 100 * usage.SOCKET
