"""PT-06, PT-08: every end has a status of its own, and tricks inside the interpreter change nothing."""

from __future__ import annotations

import signal

import pytest
from tests.escape.harness import Cage
from tests.helpers import require

from warmcell.core.errors import BackendUnavailable


@pytest.mark.attack("PT-06")
@pytest.mark.claim("WC-PT-5")
@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [
        ("raise SystemExit", 0, None),
        ("raise SystemExit(0)", 0, None),
        ("raise SystemExit(1)", 1, None),
        ("raise SystemExit(255)", 255, None),
        ("raise SystemExit(256)", 0, None),
        ("raise SystemExit(-1)", 255, None),
        ("raise SystemExit('text')", 1, None),
        ("import os; os._exit(7)", 7, None),
        ("1/0", 1, None),
        ("import os; os.kill(os.getpid(), 15)", 143, 15),
        ("import os; os.kill(os.getpid(), 9)", 137, 9),
        ("import os; os.kill(os.getpid(), 2)", 130, 2),
        ("import os; os.abort()", 134, 6),
        ("import ctypes; ctypes.string_at(0)", 139, 11),
        ("import os; os.kill(os.getpid(), 31)", 159, 31),
        ("import os; os.kill(os.getpid(), 64)", 192, 64),
    ],
)
def test_python_ends(cage: Cage, code: str, exit_code: int, number: int | None) -> None:
    outcome = cage.run(code)
    assert outcome.status == "ended"
    assert (outcome.result.exit_code, outcome.result.signal) == (exit_code, number)


@pytest.mark.attack("PT-06")
@pytest.mark.claim("WC-PT-5")
@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [
        ("exit 3", 3, None),
        ("kill -TERM $$", 143, 15),
        ("kill -KILL $$", 137, 9),
        ("exit 256", 0, None),
        ("false", 1, None),
    ],
)
def test_shell_ends(cage: Cage, code: str, exit_code: int, number: int | None) -> None:
    outcome = cage.run(code, "command")
    assert (outcome.status, outcome.result.exit_code, outcome.result.signal) == ("ended", exit_code, number)


@pytest.mark.attack("PT-06")
@pytest.mark.claim("WC-RX-1")
def test_a_timeout_is_a_timeout_and_memory_is_memory(cage: Cage) -> None:
    late = cage.run("print('part', flush=True)\nimport time; time.sleep(20)", timeout=3)
    assert (late.status, late.stdout) == ("timeout", "part\n")
    assert cage.run("x = bytearray(b'x') * (300 << 20)", memory_mb=100).status == "memory"


@pytest.mark.attack("PT-06")
def test_signals_look_like_no_limit(cage: Cage) -> None:
    """A guest that kills itself the way we would is not reported as over its limits."""
    for number in (9, 15, 24, 25):
        outcome = cage.run(
            f"import os, signal\nsignal.signal({number}, 0) if {number} != 9 else 0\nos.kill(os.getpid(), {number})"
        )
        assert outcome.status == "ended" and outcome.result.signal == number
        assert not [denial for denial in outcome.result.denials if denial.kind in ("cpu", "disk", "memory")]


_ESCAPES = {
    "subclasses": "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen' or c.__name__ == '_wrap_close']\n"
    "import os\nread = lambda: os.popen('cat ' + path).read()",
    "frames": "import sys\nf = sys._getframe()\nwhile f.f_back: f = f.f_back\n"
    "read = lambda: f.f_builtins['open'](path).read()",
    "exception frames": "try:\n    1/0\nexcept Exception as e:\n    g = e.__traceback__.tb_frame.f_globals\n"
    "read = lambda: g['__builtins__'].open(path).read()",
    "format": "class X: pass\nread = lambda: '{0.__class__.__init__.__globals__}'.format(X()) and open(path).read()",
    "ctypes": "import ctypes\nlibc = ctypes.CDLL(None)\nread = lambda: libc.system(b'cat ' + path.encode())",
    "importlib": "import importlib\nread = lambda: importlib.import_module('io').FileIO(path).read()",
    "loader": "import importlib.machinery as m\nread = lambda: m.SourceFileLoader('x', path).get_data(path)",
    "compile": "read = lambda: eval(compile('open(path).read()', '<x>', 'eval'))",
    "zipimport": "import zipimport\nread = lambda: zipimport.zipimporter(path)",
    "linecache": "import linecache\nread = lambda: ''.join(linecache.getlines(path)) or open(path)",
    "code object": "def f(): pass\nf.__code__ = compile('import os; os.system(\"cat \" + path)', '', 'exec')\nread = f",
    "pickle": 'import pickle\nread = lambda: pickle.loads(b"cposix\\nsystem\\n(S\'cat " + path.encode() + b"\'\\ntR.")',
    "subinterpreter": "import _xxsubinterpreters as s\n"
    "read = lambda: s.run_string(s.create(), 'print(open(' + repr(path) + ').read())')",
    "native code": "import ctypes\nlibc = ctypes.CDLL(None)\nb = ctypes.create_string_buffer(99)\n"
    "read = lambda: libc.read(libc.open(path.encode(), 0), b, 99) > 0 and b.value",
}


@pytest.mark.attack("PT-08")
@pytest.mark.claim("WC-FS-1")
@pytest.mark.parametrize("name", list(_ESCAPES))
def test_interpreter_tricks_gain_nothing(cage: Cage, name: str) -> None:
    code = f"path = {str(cage.canary.file)!r}\n{_ESCAPES[name]}\ntry:\n    print(read())\nexcept BaseException as e:\n    print(repr(e))"
    assert cage.canary.secret not in cage.run(code).everything


@pytest.mark.attack("PT-08")
@pytest.mark.claim("WC-FS-5")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        (
            "javascript",
            "try {{ console.log(require('fs').readFileSync('{path}', 'utf8')) }} catch (e) {{ console.log(e.code) }}",
        ),
        ("javascript", "try {{ require('{path}') }} catch (e) {{ console.log(e.code) }}"),
        ("javascript", "import('{path}').then(console.log, e => console.log(e.code))"),
        (
            "javascript",
            "console.log(process.binding ? require('child_process').spawnSync('cat', ['{path}']).stdout + '' : '')",
        ),
        (
            "typescript",
            "import * as fs from 'fs'; try {{ console.log(fs.readFileSync('{path}', 'utf8')) }} catch (e) {{}}",
        ),
    ],
)
@pytest.mark.needs("node")
def test_module_loaders_see_the_guests_world(cage: Cage, language: str, code: str) -> None:
    try:
        outcome = cage.run(code.format(path=cage.canary.file), language, timeout=15, memory_mb=1024)
    except BackendUnavailable as reason:
        require(False, str(reason))
        raise
    assert cage.canary.secret not in outcome.everything


@pytest.mark.attack("PT-08")
@pytest.mark.claim("WC-FS-5")
@pytest.mark.needs("rustc")
@pytest.mark.parametrize("macro", ["include_str!", "include_bytes!", "include!"])
def test_compilers_see_the_guests_world(cage: Cage, macro: str) -> None:
    code = f'fn main() {{ println!("{{:?}}", {macro}("{cage.canary.file}")); }}'
    outcome = cage.run(code, "rust", timeout=40, memory_mb=1024)
    assert outcome.result.exit_code != 0 and cage.canary.secret not in outcome.everything
    hosts = 'fn main() { println!("{}", include_str!("/etc/passwd").contains("sandbox")); }'
    if macro == "include_str!":
        assert cage.run(hosts, "rust", timeout=40, memory_mb=1024).stdout == "true\n"


@pytest.mark.attack("PT-06")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1])
def test_signals_that_the_caller_ignores_work_in_the_guest(cage: Cage, number: int) -> None:
    """A background job ignores SIGINT, one under nohup SIGHUP: that is the caller's matter, not its guests'."""
    previous = signal.signal(number, signal.SIG_IGN)
    try:
        backend = cage.backend()
        blocked = cage.run("import signal; print(list(signal.pthread_sigmask(0, [])))", backend=backend)
        outcome = cage.run(f"import os; os.kill(os.getpid(), {int(number)})", backend=backend)
    finally:
        signal.signal(number, previous)
    assert outcome.result.signal == number and blocked.stdout == "[]\n"
