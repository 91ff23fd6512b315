"""What is reported of each language, and what is particular to one. Common behaviour:
`tests/contract/test_languages.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import require
from tests.language_programs import PROGRAMS

from warmcell import BackendUnavailable, ExecRequest, ExecResult, ProcessBackend
from warmcell.languages import go
from warmcell.languages.config import ProcessConfig
from warmcell.languages.registry import find_language, language_runtime, why_missing
from warmcell.languages.table import ROWS

DEFAULT = ProcessConfig(pool_size=0, pool_min=0)


PROCESS = [row.name for row in ROWS if row.backend == "process"]


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend(DEFAULT) as made:
        yield made


def run(backend: ProcessBackend, language: str, code: str, stdin: str = "", **more: object) -> ExecResult:
    missing = why_missing(language, DEFAULT)
    require(missing is None, f"{language}: {missing}")
    return backend.execute_blocking(ExecRequest(language, code, 120, stdin, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("language", [name for name in PROCESS if name not in ("python", "command", "sql")])
def test_a_missing_toolchain_says_what_to_install(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.enforcers.host.is_program", lambda path: False)
    monkeypatch.setattr("warmcell.languages.javascript.find_in_wheel", lambda *_: None)
    with pytest.raises(BackendUnavailable) as caught:
        language_runtime(language).prepare("x", DEFAULT)
    assert caught.value.hint == find_language(language).remedy
    assert (caught.value.fault, caught.value.code) == ("host", "sandbox.backend_unavailable")


@pytest.mark.parametrize("language", PROCESS)
def test_versions_are_one_line(backend: ProcessBackend, language: str) -> None:
    missing = why_missing(language, DEFAULT)
    require(missing is None, f"{language}: {missing}")
    version = backend.capabilities().versions[language]
    assert version and "\n" not in version and any(character.isdigit() for character in version)


# --- what is particular to one ----------------------------------------------------------------------------------------


def test_c_is_compiled_as_promised(backend: ProcessBackend) -> None:
    code = '#include <stdio.h>\nint main(void) { printf("%ld %d", __STDC_VERSION__, __OPTIMIZE__); }'
    assert run(backend, "c", code).stdout == "201710 1"
    code = "#include <iostream>\nint main() { std::cout << (__cplusplus >= 202000L); }"
    assert run(backend, "c++", code).stdout == "1"


def test_a_java_heap_fits_the_memory_of_the_run(backend: ProcessBackend) -> None:
    code = "class A { public static void main(String[] a) { System.out.println(Runtime.getRuntime().maxMemory() >> 20); } }"
    assert 100 <= int(run(backend, "java", code, memory_limit_mb=256).stdout) <= 128
    greedy = "class A { public static void main(String[] a) { var l = new java.util.ArrayList<byte[]>(); while (true) l.add(new byte[1 << 20]); } }"
    result = run(backend, "java", greedy)
    assert result.exit_code == 1 and "OutOfMemoryError" in result.stderr


def test_a_java_without_a_compiler_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").write_text("#!/bin/sh\n")
    (tmp_path / "bin/java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(BackendUnavailable, match="without the compiler") as caught:
        language_runtime("java").prepare("", DEFAULT)
    assert caught.value.hint == find_language("java").remedy


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("create table t(a, b); insert into t values (1, 'x'), (2, null); select * from t;", "1|x\n2|\n"),
        ("select 1; select 2", "1\n2\n"),
        ("select 'a;b', ';' -- ; not yet\n;", "a;b|;\n"),
        ("select 0.1, 1e20, 100.0, 0.25;", "0.1|1.0e+20|100.0|0.25\n"),
        ("select x'4142', 'é', 9223372036854775807;", "AB|é|9223372036854775807\n"),
        (
            "create table t(a); create trigger x after insert on t begin select 1; end; insert into t values (1); select 5;",
            "5\n",
        ),
        ("\ufeffselect 7;", "7\n"),
    ],
)
def test_sql_prints_rows_as_sqlite_does(backend: ProcessBackend, script: str, printed: str) -> None:
    result = run(backend, "sql", script)
    assert (result.stdout, result.stderr, result.exit_code) == (printed, "", 0)


def test_sql_says_where_it_stopped(backend: ProcessBackend) -> None:
    result = run(backend, "sql", "select 1;\n\nselect * from nowhere;\nselect 2;")
    assert (result.stdout, result.stderr, result.exit_code) == ("1\n", "error near line 3: no such table: nowhere\n", 1)


def test_a_python_without_sqlite_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmcell.languages import sql

    def refuse(*_: object, **__: object) -> str:
        raise BackendUnavailable("ModuleNotFoundError: No module named '_sqlite3'")

    monkeypatch.setattr(sql, "query_tool", refuse)
    sql._sqlite_version.cache_clear()
    with pytest.raises(BackendUnavailable, match="needs Python's sqlite3") as caught:
        language_runtime("sql").prepare("select 1", DEFAULT)
    assert caught.value.hint == find_language("sql").remedy


def test_a_guests_go_program_leaves_nothing_in_the_cache(backend: ProcessBackend) -> None:
    code = f'package main\nimport "fmt"\nconst secret = "canary-{os.urandom(8).hex()}"\nfunc main() {{ fmt.Print(len(secret)) }}'
    assert run(backend, "go", PROGRAMS["go"].greets, "x\n").stdout == "hello x\n"
    cache = go.standard_library(go.find_go())
    before = sorted(str(path) for path in Path(cache).rglob("*"))
    assert run(backend, "go", code).stdout == "23"
    assert sorted(str(path) for path in Path(cache).rglob("*")) == before


def test_go_has_the_rest_of_the_standard_library_too(backend: ProcessBackend) -> None:
    code = 'package main\nimport ("fmt"; "hash/adler32")\nfunc main() { fmt.Print(adler32.Checksum([]byte("x"))) }'
    assert run(backend, "go", code).stdout == "7929977"
