"""A guest gives its Unix sockets any names, and the kernel writes them into its table as they are."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from warmcell.cage.watching import kernel_memory, usage
from warmcell.cage.watching.patience import Patience

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


@pytest.mark.attack("S3-03")
@pytest.mark.parametrize("name", ["tcp", "udp6", "icmp", "icmp6"])
def test_queues_in_a_network_of_others_count_by_their_inode(tmp_path: Path, name: str) -> None:
    """Hosts may let their users send pings, without privileges, by sockets of their own kind."""
    with socket.socket() as one:
        inode, size = os.fstat(one.fileno()).st_ino, 512 << 20
        line = f"1: 0100007F:0007 00000000:0000 07 00000000:{size:08X} 00:00000000 00000000 1000 0 {inode} 2 0 0"
        (tmp_path / name).write_text(f"heading\n{line}\n")
        table = kernel_memory.DescriptorTable("/proc", str(tmp_path), False)
        assert size <= table.look([os.getpid()], Patience(1e9, 1e9)).memory < 2 * size
