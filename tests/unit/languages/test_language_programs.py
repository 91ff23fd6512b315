"""Real programs in every language, in the cage: what they print and read, how they end, and what a mistake looks like."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell import BackendUnavailable, BuildFailed, ExecRequest, ExecResult, PolicyViolation, ProcessBackend
from warmcell.core.errors import EnforcerUnavailable
from warmcell.languages import go
from warmcell.languages.config import ProcessConfig
from warmcell.languages.registry import find_language, language_runtime, why_missing
from warmcell.languages.table import ROWS
from warmcell.policy.places import is_within

DEFAULT = ProcessConfig(pool_size=0, pool_min=0)
GREETING = "hello wörld 🦀\n"


@dataclass(frozen=True)
class Sample:
    """`greets` prints "hello " and its first line of input and ends with status 3 where the language can."""

    greets: str
    mistake: str
    complaint: str
    status: int = 3


SAMPLES = {
    "python": Sample("print('hello', input()); raise SystemExit(3)", "print(", "SyntaxError"),
    "javascript": Sample(
        "const text = require('fs').readFileSync(0, 'utf8'); process.stdout.write('hello ' + text); process.exitCode = 3",
        "let = ;",
        "SyntaxError",
    ),
    "typescript": Sample(
        "const text: string = require('fs').readFileSync(0, 'utf8'); process.stdout.write('hello ' + text); process.exitCode = 3",
        "let x: = 1;",
        "SyntaxError",
    ),
    "rust": Sample(
        'use std::io; fn main() { let mut s = String::new(); io::stdin().read_line(&mut s).unwrap(); print!("hello {s}"); '
        "std::process::exit(3) }",
        "fn main() { x }",
        "cannot find value",
    ),
    "command": Sample("read -r line; echo hello $line; exit 3", "if", "syntax error"),
    "c": Sample(
        '#include <stdio.h>\nint main(void) { char b[99]; fgets(b, 99, stdin); printf("hello %s", b); return 3; }',
        "int main(void) { return x; }",
        "main.c:1:",
    ),
    "cpp": Sample(
        "#include <iostream>\n#include <string>\n"
        'int main() { std::string s; std::getline(std::cin, s); std::cout << "hello " << s << std::endl; return 3; }',
        "int main() { return x; }",
        "main.cpp:1:",
    ),
    "go": Sample(
        'package main\nimport ("bufio"; "fmt"; "os")\n'
        'func main() { s := bufio.NewScanner(os.Stdin); s.Scan(); fmt.Println("hello", s.Text()); os.Exit(3) }',
        "package main\nfunc main() { x }",
        "undefined: x",
    ),
    "java": Sample(
        "import java.util.Scanner; public class Anything { public static void main(String[] a) { "
        'System.out.println("hello " + new Scanner(System.in).nextLine()); System.exit(3); } }',
        'class A { public static void main(String[] a) { int x = "s"; } }',
        "Main.java:1: error",
    ),
    "ruby": Sample('puts "hello #{gets}"; exit 3', "puts 1 +", "syntax error"),
    "php": Sample('<?php echo "hello ".fgets(STDIN); exit(3);', "<?php echo 1 +;", "Parse error"),
    "perl": Sample('my $l = <STDIN>; print "hello $l"; exit 3;', "print 1 +;", "syntax error"),
    "lua": Sample('print("hello " .. io.read()); os.exit(3)', "print(1 +", "unexpected symbol"),
    "r": Sample(
        'cat("hello ", readLines(file("stdin"), 1), "\\n", sep=""); quit(status=3)', "print(1 +", "unexpected end"
    ),
    "sql": Sample(
        "select 'hello ' || trim(cast(readfile('/dev/stdin') as text), char(10));", "selec 1;", "syntax error", status=0
    ),
}
#: Prints the file that its first argument names; SQL has none, and reads the name from its input.
READERS = {
    "python": "import sys; print(open(sys.argv[1]).read())",
    "javascript": "console.log(require('fs').readFileSync(process.argv[2], 'utf8'))",
    "typescript": "const path: string = process.argv[2]; console.log(require('fs').readFileSync(path, 'utf8'))",
    "rust": 'fn main() { print!("{}", std::fs::read_to_string(std::env::args().nth(1).unwrap()).unwrap()) }',
    "command": 'cat "$1"',
    "c": '#include <stdio.h>\nint main(int n, char **v) { FILE *f = fopen(v[1], "r"); if (!f) return 1; '
    "for (int c; (c = getc(f)) != EOF;) putchar(c); }",
    "cpp": "#include <fstream>\n#include <iostream>\nint main(int, char **v) { std::cout << std::ifstream(v[1]).rdbuf(); }",
    "go": 'package main\nimport ("fmt"; "os")\n'
    "func main() { b, e := os.ReadFile(os.Args[1]); if e != nil { os.Exit(1) }; fmt.Print(string(b)) }",
    "java": "import java.nio.file.*; class A { public static void main(String[] a) throws Exception { "
    "System.out.print(Files.readString(Path.of(a[0]))); } }",
    "ruby": "puts File.read(ARGV[0])",
    "php": "<?php echo file_get_contents($argv[1]);",
    "perl": "open(my $f, '<', $ARGV[0]) or exit 1; print <$f>;",
    "lua": "print(assert(io.open(arg[1])):read('a'))",
    "r": "cat(readLines(commandArgs(TRUE)[1]))",
    "sql": "select readfile(cast(readfile('/dev/stdin') as text));",
}
PROCESS = [row.name for row in ROWS if row.backend == "process"]


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend(DEFAULT) as made:
        yield made


def run(backend: ProcessBackend, language: str, code: str, stdin: str = "", **more: object) -> ExecResult:
    missing = why_missing(language, DEFAULT)
    require(missing is None, f"{language}: {missing}")
    return backend.execute_blocking(ExecRequest(language, code, 120, stdin, **more))  # type: ignore[arg-type]


def test_every_language_has_a_sample() -> None:
    assert sorted(SAMPLES) == sorted(READERS) == sorted(PROCESS)


@pytest.mark.parametrize("language", PROCESS)
def test_it_prints_reads_and_ends(backend: ProcessBackend, language: str) -> None:
    result = run(backend, language, SAMPLES[language].greets, "wörld 🦀\n")
    assert (result.stdout, result.exit_code, result.signal) == (GREETING, SAMPLES[language].status, None), result.stderr


@pytest.mark.parametrize("language", PROCESS)
def test_a_mistake_is_a_result_that_says_where(backend: ProcessBackend, language: str) -> None:
    result = run(backend, language, SAMPLES[language].mistake)
    assert not result.ok and result.stdout == ""
    assert SAMPLES[language].complaint in result.stderr


@pytest.mark.parametrize("language", PROCESS)
def test_it_is_built_once_and_run_often(backend: ProcessBackend, language: str) -> None:
    missing = why_missing(language, DEFAULT)
    require(missing is None, f"{language}: {missing}")
    with backend.build_blocking(ExecRequest(language, SAMPLES[language].greets, 120)) as program:
        for name in ("wörld 🦀", "x"):
            result = program.run_blocking(f"{name}\n")
            assert (result.stdout, result.exit_code) == (f"hello {name}\n", SAMPLES[language].status), result.stderr


@pytest.mark.parametrize("language", [name for name in PROCESS if name != "sql"])
def test_a_mistake_is_found_when_it_is_built(backend: ProcessBackend, language: str) -> None:
    missing = why_missing(language, DEFAULT)
    require(missing is None, f"{language}: {missing}")
    with pytest.raises(BuildFailed) as caught:
        backend.build_blocking(ExecRequest(language, SAMPLES[language].mistake, 120))
    assert SAMPLES[language].complaint in caught.value.result.stderr + caught.value.result.stdout


@pytest.mark.parametrize("language", PROCESS)
def test_it_reads_the_files_it_was_given_and_has_nothing_of_the_host(
    backend: ProcessBackend, language: str, tmp_path: Path
) -> None:
    missing = why_missing(language, DEFAULT)
    require(missing is None, f"{language}: {missing}")
    secret = tmp_path / "secret"
    secret.write_text("canary of the host")
    request = ExecRequest(language, READERS[language], 120, files={"data/given.txt": "it was given"})
    needed = language_runtime(language).prepare(READERS[language], DEFAULT).runtime_paths
    if any(is_within(path, "/work") for path in needed):  # this very checkout may lie there
        with pytest.raises(PolicyViolation, match="would cover"):
            backend.execute_blocking(request)
        return
    with backend.build_blocking(request) as program:
        assert "it was given" in program.run_blocking("data/given.txt", ["data/given.txt"]).stdout
        assert "canary" not in program.run_blocking(str(secret), [str(secret)]).stdout
        devices = program.run_blocking("/proc/net/dev", ["/proc/net/dev"]).stdout
        assert set(re.findall(r"(\w+):", devices)) == {"lo"}


@pytest.mark.parametrize("language", PROCESS)
@pytest.mark.parametrize("enforcer", ["bubblewrap", "landlock"])
def test_the_other_classes_run_it_too(language: str, enforcer: str) -> None:
    with ProcessBackend(DEFAULT, enforcer=enforcer) as made:
        try:
            made.capabilities()
        except EnforcerUnavailable as reason:
            require(False, str(reason))
        assert run(made, language, SAMPLES[language].greets, "wörld 🦀\n").stdout == GREETING


@pytest.mark.parametrize("language", [name for name in PROCESS if name not in ("python", "command", "sql")])
def test_a_missing_toolchain_says_what_to_install(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.enforcers.host.is_program", lambda path: False)
    monkeypatch.setattr("warmcell.languages.javascript.find_in_wheel", lambda *_: None)
    with pytest.raises(BackendUnavailable) as caught:
        language_runtime(language).prepare("x", DEFAULT)
    assert caught.value.hint == find_language(language).remedy
    assert (caught.value.fault, caught.value.code) == ("host", "sandbox.backend_unavailable")


@pytest.mark.parametrize("language", PROCESS)
def test_versions_are_told_in_one_line(backend: ProcessBackend, language: str) -> None:
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


def test_a_java_without_a_compiler_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(sql, "ask", refuse)
    sql._sqlite_version.cache_clear()
    with pytest.raises(BackendUnavailable, match="needs Python's sqlite3") as caught:
        language_runtime("sql").prepare("select 1", DEFAULT)
    assert caught.value.hint == find_language("sql").remedy


def test_a_guests_go_program_leaves_nothing_in_the_cache(backend: ProcessBackend) -> None:
    code = f'package main\nimport "fmt"\nconst secret = "canary-{os.urandom(8).hex()}"\nfunc main() {{ fmt.Print(len(secret)) }}'
    assert run(backend, "go", SAMPLES["go"].greets, "x\n").stdout == "hello x\n"
    cache = go.standard_library(go.find_go())
    before = sorted(str(path) for path in Path(cache).rglob("*"))
    assert run(backend, "go", code).stdout == "23"
    assert sorted(str(path) for path in Path(cache).rglob("*")) == before


def test_go_has_the_rest_of_the_standard_library_too(backend: ProcessBackend) -> None:
    code = 'package main\nimport ("fmt"; "hash/adler32")\nfunc main() { fmt.Print(adler32.Checksum([]byte("x"))) }'
    assert run(backend, "go", code).stdout == "7929977"
