"""No language has more of the host than another: files, network. The programs are in `tests/language_programs.py`."""

from __future__ import annotations

import re
import socket

import pytest
from tests.escape.harness import Cage
from tests.language_programs import PROGRAMS, runnable

from warmcell import ExecRequest

GIVEN = "data/gegében 1.txt"


@pytest.mark.attack("FS-01", "NW-01")
@pytest.mark.parametrize("language", list(PROGRAMS))
def test_it_has_the_files_it_was_given_and_nothing_of_the_host(cage: Cage, language: str) -> None:
    request = ExecRequest(language, runnable(language).reads, 120, files={GIVEN: "it was given"})
    with cage.default.build_blocking(request) as program, socket.create_server(("127.0.0.1", 0)) as listener:

        def read(path: str) -> str:
            return program.run_blocking(path, [path]).stdout

        assert "it was given" in read(GIVEN)
        assert cage.canary.secret not in read(str(cage.canary.file))
        assert set(re.findall(r"(\w+):", read("/proc/net/dev"))) == {"lo"}
        # Not the host's loopback either: its listeners are out of sight.
        assert f":{listener.getsockname()[1]:04X} " not in read("/proc/net/tcp")
