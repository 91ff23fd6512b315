"""Odd texts and inputs end in the cage as they do on the bare system: CRLF, BOM, long lines, deep recursion, much input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import require
from tests.unit.languages.running import run_program

from warmcell import ExecRequest, InvalidRequest, Limits, ProcessBackend, ProcessConfig
from warmcell.languages.registry import language_runtime, why_missing

pytestmark = pytest.mark.needs("user namespaces")
CONFIG = ProcessConfig(pool_size=0, pool_min=0)
#: A library of ours would not do: what the same file does without a cage is the measure.
BARE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
BOM = "\ufeff"
LONG = 1_000_000
DEEP = 20_000


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend(CONFIG) as made:
        yield made


CRLF = {
    "python": "x = 1\r\nif x:\r\n    print('''a\r\nb''')\r\n",
    "command": "echo one\r\nif true; then\r\n echo two\r\nfi\r\n",
    "javascript": "console.log(`a\r\nb`)\r\n// c\r\n",
    "ruby": "puts 1\r\nputs <<E\r\nx\r\nE\r\n",
    "perl": "print 1;\r\nprint 'x';\r\n",
    "php": "<?php\r\necho 1;\r\n?>\r\nx\r\n",
    "lua": "print(1)\r\nprint('x')\r\n",
    "c": '#include <stdio.h>\r\n#define A \\\r\n 1\r\nint main(void) { printf("%d", A); }\r\n',
}
WITH_BOM = {
    "python": f"{BOM}print(1)",
    "command": f"{BOM}echo 1",
    "javascript": f"{BOM}console.log(1)",
    "ruby": f"{BOM}puts 1",
    "perl": f"{BOM}print 1;",
    "php": f"{BOM}<?php echo 1;",
    "lua": f"{BOM}print(1)",
    "c": f'{BOM}#include <stdio.h>\nint main(void) {{ puts("1"); }}',
}
LONG_LINES = {
    "python": f"print(len('{'x' * LONG}'))",
    "command": f"x={'x' * LONG}; echo ${{#x}}",
    "javascript": f"console.log('{'x' * LONG}'.length)",
    "perl": f"print length('{'x' * LONG}');",
    "c": f'#include <stdio.h>\n#include <string.h>\nint main(void) {{ printf("%zu", strlen("{"x" * LONG}")); }}',
}
RECURSION = {
    "python": f"import sys; sys.setrecursionlimit({DEEP * 2})\ndef f(n): return n and 1 + f(n - 1)\nprint(f({DEEP}))",
    "javascript": "function f() { return f() } try { f() } catch (error) { console.log(error.name) }",
    "ruby": "def f; f; end\nbegin; f; rescue SystemStackError => e; puts e.class; end",
    "perl": f"no warnings; sub f {{ my $n = shift; $n ? 1 + f($n - 1) : 0 }} print f({DEEP});",
    "lua": f"local function f(n) return n == 0 and 0 or 1 + f(n - 1) end print(f({DEEP}))",
    "c": "#include <stdio.h>\nint f(int n) { volatile char b[64]; b[0] = n; return n ? 1 + f(n - 1) + b[0] * 0 : 0; }\n"
    f'int main(void) {{ printf("%d", f({DEEP})); fflush(stdout); return f(400000) & 1; }}',
}
ODD = {
    f"{kind} {language}": (language, code)
    for kind, codes in (("crlf", CRLF), ("bom", WITH_BOM), ("long line", LONG_LINES), ("recursion", RECURSION))
    for language, code in codes.items()
}


@pytest.mark.parametrize("name", list(ODD))
def test_it_ends_as_on_the_bare_system(backend: ProcessBackend, tmp_path: Path, name: str) -> None:
    language, code = ODD[name]
    missing = why_missing(language, CONFIG)
    require(missing is None, f"{language}: {missing}")
    bare = run_program(language_runtime(language).prepare(code, CONFIG), tmp_path, env=BARE_ENV)
    caged = backend.execute_blocking(ExecRequest(language, code, 60))
    signal = -bare.returncode if bare.returncode < 0 else None
    assert (caged.stdout.replace("\r\n", "\n"), caged.signal) == (bare.stdout, signal)
    assert caged.exit_code == (128 + signal if signal else bare.returncode)
    assert bool(caged.stderr) == bool(bare.stderr)


def test_a_text_that_is_too_long_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ExecRequest("python", "x" * (9 << 20), 5)
    assert (caught.value.field, caught.value.fault) == ("code", "caller")


def test_a_hundred_megabytes_of_input_and_a_line_of_fifty(backend: ProcessBackend) -> None:
    data = b"x" * (50 << 20) + b"\n" + b"y" * (50 << 20)
    assert backend.execute_blocking(ExecRequest("command", "wc -c", 60, stdin=data)).stdout.strip() == str(len(data))
    code = "import sys\nprint(len(input()), sum(map(len, sys.stdin.buffer)))"
    result = backend.execute_blocking(ExecRequest("python", code, 60, stdin=data, limits=Limits(memory_mb=1024)))
    assert result.stdout.split()[0] == str(50 << 20), result.stderr


def test_a_thread_with_a_large_stack_recurses_as_deep_as_anywhere(backend: ProcessBackend) -> None:
    """As people who solve problems in Python do it."""
    code = (
        "import sys, threading\nsys.setrecursionlimit(10**6); threading.stack_size(256 << 20)\n"
        "def f(n): return n and 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(100000))); t.start(); t.join()"
    )
    assert backend.execute_blocking(ExecRequest("python", code, 60)).stdout == "100000\n"
