"""The Python component: command line, files, tracebacks, exit statuses, limits. Built once into the user's cache."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest
import python_host
import wasmtime
import wasmtime.component
from harness import Outcome
from tests.helpers import PATIENCE, one_worker

from warmcell.toolbox import python_component

MUST_WORK = bool(os.environ.get("WARMCELL_MUST_WORK"))


class Python:
    def __init__(self) -> None:
        config = wasmtime.Config()
        config.max_wasm_stack = 2 << 20
        config.epoch_interruption = True
        self.engine = wasmtime.Engine(config)
        self.component = self.compile_component(python_component.ensure_component())
        self.linker = python_host.make_linker(self.engine)

    def compile_component(self, name: str) -> wasmtime.component.Component:
        """Compiling takes longer than all tests: code of the same engine is cached beside the component."""
        directory = Path(python_component.components().path)
        cached = directory / f"{name}-tests-{importlib.metadata.version('wasmtime')}.cwasm"
        if cached.exists():
            return wasmtime.component.Component.deserialize_file(self.engine, str(cached))
        component = wasmtime.component.Component(self.engine, python_component.read_component(name))
        temporary = cached.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(component.serialize())
        os.replace(temporary, cached)
        return component

    def run(
        self,
        *args: str,
        stdin: str = "",
        env: dict[str, str] | None = None,
        work: Path | None = None,
        cwd: str = "/work",
        ticks: int = 10**9,
        memory_bytes: int | None = None,
        writable: bool = True,
    ) -> Outcome:
        preopens = [python_host.Preopen(work, "/work", writable)] if work else []
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            given.write(stdin.encode())
            given.flush()
            given.seek(0)
            code = python_host.run_component(
                self.engine, self.component, ["python3", *args], env or {}, cwd, given.fileno(), out.fileno(), errors.fileno(), preopens,
                epoch_ticks=ticks, memory_bytes=memory_bytes, linker=self.linker,
            )  # fmt: skip
            out.seek(0)
            errors.seek(0)
            return Outcome(code, out.read().decode(), errors.read().decode())


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    if not python_component.is_cached():
        try:
            python_component.require_builder()
        except python_component.ComponentUnavailable as missing:
            if MUST_WORK:
                raise
            pytest.skip(str(missing))
    with one_worker(tmp_path_factory, "python.wasm"):
        return Python()


def test_command_line(python: Python, tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("x = 5\nif __name__ == '__main__': print('run as', __name__)\n")
    (tmp_path / "s.py").write_text("import sys, mod\nprint(sys.argv, mod.x, __name__, __file__)\n")
    assert python.run("-c", "print(6*7)") == Outcome(0, "42\n", "")
    assert python.run("--version").stdout.startswith("Python 3.14")
    assert python.run("s.py", "a", "b", work=tmp_path).stdout == "['s.py', 'a', 'b'] 5 __main__ /work/s.py\n"
    assert python.run("-m", "mod", work=tmp_path).stdout == "run as __main__\n"
    assert python.run("-", "x", stdin="import sys\nprint(sys.argv)").stdout == "['-', 'x']\n"
    assert python.run(stdin="print('piped')").stdout == "piped\n"
    assert python.run("-m", "json.tool", stdin='{"a":1}') == Outcome(0, '{\n    "a": 1\n}\n', "")
    assert python.run("-uc", "import sys; print(sys.argv)", "-x").stdout == "['-c', '-x']\n"


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [("import sys; sys.exit(3)", 3, ""), ("raise SystemExit", 0, ""), ("import sys; sys.exit('bye')", 1, "bye\n"), ("import sys; sys.exit(255)", 255, ""), ("import os; os._exit(130)", 130, ""), ("exit(7)", 7, "")],
)  # fmt: skip
def test_exit_statuses(python: Python, code: str, status: int, stderr: str) -> None:
    assert python.run("-c", code) == Outcome(status, "", stderr)


def test_failures(python: Python, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    return 1/0\nf()\n")
    outcome = python.run("bad.py", work=tmp_path)
    assert outcome.code == 1
    assert outcome.stderr.startswith(
        'Traceback (most recent call last):\n  File "/work/bad.py", line 3, in <module>\n    f()\n'
    )
    assert outcome.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "command.py" not in outcome.stderr
    assert "SyntaxError" in python.run("-c", "x =").stderr
    assert python.run("nope.py", work=tmp_path).code == 2
    assert "No module named nope" in python.run("-m", "nope", work=tmp_path).stderr
    assert python.run("-Z").code == 2
    assert python.run("-c", "print('before'); 1/0").stdout == "before\n"


def test_environment_and_directory(python: Python, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    outcome = python.run(
        "-c",
        "import os; print(dict(os.environ), os.getcwd()); open('x','w').write('1')",
        env={"A": "1"},
        work=tmp_path,
        cwd="/work/sub",
    )
    assert outcome.stdout == "{'A': '1'} /work/sub\n"
    assert (tmp_path / "sub" / "x").read_text() == "1"


def test_mounts_are_the_only_files(python: Python, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "secret").write_text("secret")
    (work / "link").symlink_to("../secret")
    for name in ("/etc/passwd", "../secret", "link"):
        assert python.run("-c", f"open({name!r})", work=work).code == 1
    assert python.run("-c", "open('x', 'w')", work=work, writable=False).code == 1


def test_runs_differ_where_they_must(python: Python) -> None:
    code = "import random, uuid, secrets, tempfile; print(random.random(), uuid.uuid4(), secrets.token_hex(4))"
    assert len({python.run("-c", code).stdout for _ in range(3)}) == 3
    assert abs(float(python.run("-c", "import time; print(time.time())").stdout) - time.time()) < 60


def test_standard_library(python: Python) -> None:
    names = "re json datetime collections itertools decimal fractions statistics csv hashlib zlib gzip base64 pathlib dataclasses typing enum functools sqlite3 asyncio unittest logging argparse zipfile tarfile textwrap tomllib ast difflib xml.etree.ElementTree urllib.parse html.parser email.message zoneinfo concurrent.futures"
    assert python.run("-c", f"for n in {names.split()!r}: __import__(n)\nprint('ok')") == Outcome(0, "ok\n", "")


def test_asyncio_works_without_sockets(python: Python) -> None:
    code = """
import asyncio
async def work(n):
    await asyncio.sleep(n / 100)
    return n
async def main():
    print(await asyncio.gather(work(3), work(1)), await asyncio.to_thread(lambda: 'called'))
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.02)
    except TimeoutError:
        print('timeout')
asyncio.run(main())
"""
    assert python.run("-c", code) == Outcome(0, "[3, 1] called\ntimeout\n", "")


def test_recursion_is_an_exception(python: Python) -> None:
    assert python.run("-c", "def f(): f()\ntry: f()\nexcept RecursionError: print('deep')").stdout == "deep\n"


def test_exit_handlers_and_hooks(python: Python) -> None:
    assert python.run("-c", "import atexit; atexit.register(print, 'bye'); print('hi')").stdout == "hi\nbye\n"
    assert python.run("-c", "import sys; sys.excepthook = lambda *a: print('hook'); 1/0") == Outcome(1, "hook\n", "")


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(300)"])
def test_the_epoch_stops_loops_and_sleeps(python: Python, code: str) -> None:
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(0.3):  # a tick before the run has its deadline does not count
            python.engine.increment_epoch()

    ticking = threading.Thread(target=tick)
    ticking.start()
    started = time.monotonic()
    try:
        with pytest.raises(wasmtime.WasmtimeError, match="interrupt"):
            python.run("-c", code, ticks=1)
    finally:
        ended.set()
        ticking.join()
    assert time.monotonic() - started < PATIENCE


def test_memory_limit(python: Python) -> None:
    try:
        outcome = python.run("-c", "x = []\nwhile True: x.append(bytearray(1 << 20))", memory_bytes=128 << 20)
    except (wasmtime.WasmtimeError, wasmtime.Trap):
        return
    assert outcome.code == 1 and "MemoryError" in outcome.stderr
