"""Counts the lines that run inside cages and workers, and adds them to the coverage of the tests.

    pytest -p tests.inside.plugin --inside=DIRECTORY --cov=warmcell ...

Nothing in the package knows of this: the tests change how zygotes are started, of which all the others are forks, in
their own process.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import CoverageData

import warmcell
from warmcell.pool import manager_process

PACKAGE = Path(warmcell.__file__).parent
COLLECTOR = Path(__file__).with_name("collector.py")
#: The rooms whose code runs in other processes, and the names that two files go by there.
ROOMS = ("cage", "guest")
ALIASES = {PACKAGE / f"guest/python/{name}.py": f"<warmcell {name}>" for name in ("worker", "interpreter_exit")}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--inside", type=Path, help="count what runs inside cages, by way of this directory")


def pytest_configure(config: pytest.Config) -> None:
    directory = config.getoption("--inside")
    if directory is None:
        return
    if sys.version_info < (3, 13):
        raise pytest.UsageError("--inside needs Python 3.13")
    if not hasattr(config, "workerinput"):
        lay_out(directory)
    count_zygotes(directory)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Innermost, so that pytest-cov finds the file when it combines what others have counted."""
    done = yield
    directory = session.config.getoption("--inside")
    if directory is not None and not hasattr(session.config, "workerinput"):
        _write_data(count_lines(directory))
    return done


def _write_data(lines: dict[Path, list[int]]) -> None:
    if not any(lines.values()):
        raise pytest.UsageError("--inside counted nothing: zygotes and workers are started in some new way")
    data = CoverageData(basename=".coverage.inside")
    data.add_lines({str(path): numbers for path, numbers in lines.items()})
    data.write()


def sources() -> list[Path]:
    return sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))


def count_lines(directory: Path) -> dict[Path, list[int]]:
    """Which lines of each file ran."""
    hits = (directory / "hits").read_bytes()
    found, first = {}, 0
    for path in sources():
        size = _length(path)
        found[path] = [line for line in range(size) if hits[first + line]]
        first += size
    return found


def _length(path: Path) -> int:
    return path.read_bytes().count(b"\n") + 2


def lay_out(directory: Path) -> None:
    rows, first = [], 0
    for path in sources():
        rows.append(f"{first} {ALIASES.get(path, path)}\n")
        first += _length(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "table").write_text("".join(rows))
    (directory / "hits").write_bytes(bytes(first))


def count_zygotes(directory: Path) -> None:
    scope = f"{{'__name__': 'collector', 'directory': {str(directory)!r}}}"
    begin = f"exec(open({str(COLLECTOR)!r}).read() + 'collect(directory)', {scope})\n"
    manager_process.BOOT = begin + manager_process.BOOT
