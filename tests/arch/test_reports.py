"""A test that fails is one red test, whatever stands in the way of showing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAILING = """
import _pytest._code.source

class Ast:
    def parse(self, *arguments):
        raise SystemError("AST constructor recursion depth mismatch (before=147, after=201)")

def test_fails():
    _pytest._code.source.ast = Ast()
    assert 6 * 7 == 43

def test_passes():
    pass
"""


def test_a_source_that_cannot_be_parsed_does_not_end_the_run(repository: Path, tmp_path: Path) -> None:
    test = tmp_path / "test_failing.py"
    test.write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(test)]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "1 failed, 1 passed" in ended.stdout, ended.stdout
    assert "assert (6 * 7) == 43" in ended.stdout
