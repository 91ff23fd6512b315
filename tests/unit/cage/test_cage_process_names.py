"""A guest gives its processes any names, and the kernel shows those bytes in the files that the manager reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.helpers import in_a_fork

from warmcell.cage.linux import guest_files, notify


@pytest.mark.needs("linux")
def test_a_process_whose_name_is_no_text_is_found() -> None:
    """An error of decoding would end the manager, and with it the guests of all others."""

    def find() -> list[int]:
        Path("/proc/self/comm").write_bytes(b"\xff\xfe")
        return [guest_files._process_of(os.getpid()), int(notify._read_status(os.getpid())["Tgid"]), os.getpid()]

    found = in_a_fork(find)
    assert isinstance(found, list) and len(set(found)) == 1
