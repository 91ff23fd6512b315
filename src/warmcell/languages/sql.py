"""SQL: SQLite in memory, by the guest's own Python. Rows are printed as `a|b`, without a header."""

from __future__ import annotations

from functools import lru_cache

from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import replace
from warmcell.enforcers.host import FileStamp, query_tool, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import ProgramSpec
from warmcell.languages.python import MAIN_FILE, PythonRuntime, find_interpreter
from warmcell.languages.table import REMEDIES

SCRIPT_FILE = "main.sql"

#: Runs inside the cage. Values are printed as SQLite prints them, which differs from Python for some numbers.
RUNNER = """
import os, sqlite3, sys

def statements(text):
    begin = end = 0
    while True:
        end = text.find(";", end) + 1
        if not end:
            break
        if sqlite3.complete_statement(text[begin:end]):
            yield begin, text[begin:end]
            begin = end
    if text[begin:].strip():
        yield begin, text[begin:]

def shown(database, value):
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        value = database.execute("select cast(? as text)", (value,)).fetchone()[0]
    return str(value).encode("utf-8", "surrogateescape")

def read_file(path):
    if path == "/dev/stdin":
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None

def main():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "main.sql"), encoding="utf-8-sig") as file:
        text = file.read()
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    database.create_function("readfile", 1, read_file)
    for begin, statement in statements(text):
        try:
            for row in database.execute(statement):
                sys.stdout.buffer.write(b"|".join(shown(database, value) for value in row) + b"\\n")
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError, MemoryError) as error:
            sys.stdout.buffer.flush()
            leading = len(statement) - len(statement.lstrip())
            line = text.count("\\n", 0, begin + leading) + 1
            sys.exit(f"error near line {line}: {error or 'out of memory'}")
    sys.stdout.buffer.flush()

main()
""".lstrip()


class SqlRuntime:
    """A Python program that runs the script, in a warm interpreter."""

    name = "sql"

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        _sqlite_version(stamp(find_interpreter(config).path))
        program = PythonRuntime().prepare(RUNNER, config)
        files = {MAIN_FILE: RUNNER.encode(), SCRIPT_FILE: code.encode()}
        return replace(program, files=files, check=None)  # the meaning of a statement depends on those before it

    def version(self, config: ProcessConfig) -> str:
        return f"SQLite {_sqlite_version(stamp(find_interpreter(config).path))}"


@lru_cache(maxsize=8)
def _sqlite_version(identity: FileStamp) -> str:
    """Some Pythons are built without sqlite3."""
    try:
        return query_tool([identity[0], "-I", "-S", "-c", "import sqlite3; print(sqlite3.sqlite_version)"])
    except BackendUnavailable as error:
        raise BackendUnavailable(f"sql needs Python's sqlite3: {error.message}", hint=REMEDIES["sql"]) from None
