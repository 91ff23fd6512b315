"""The names of languages. Apart from `types.py`, because the command line needs no more of it for `--help`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Language(StrEnum):
    """The languages that come with Warmcell. A backend may have more, named by plain text."""

    RUST = "rust"
    PYTHON = "python"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"
    WASM = "wasm"
    COMMAND = "command"
    C = "c"
    CPP = "cpp"
    GO = "go"
    JAVA = "java"
    RUBY = "ruby"
    PHP = "php"
    PERL = "perl"
    LUA = "lua"
    R = "r"
    SQL = "sql"


#: Other names for the same languages. A request always carries the language's own name.
ALIASES: Mapping[str, tuple[str, ...]] = {
    Language.RUST: ("rs",),
    Language.PYTHON: ("py", "python3"),
    Language.JAVASCRIPT: ("js", "node", "nodejs"),
    Language.TYPESCRIPT: ("ts",),
    Language.COMMAND: ("bash", "sh", "shell"),
    Language.CPP: ("c++", "cxx"),
    Language.GO: ("golang",),
    Language.RUBY: ("rb",),
    Language.PERL: ("pl",),
    Language.R: ("rscript",),
    Language.SQL: ("sqlite", "sqlite3"),
}
