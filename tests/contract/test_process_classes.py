"""What the classes of the process backend do alike, beyond the contract: languages, signals, process trees."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest
from tests.contract.conftest import BACKENDS, Run, runner
from tests.helpers import PATIENCE, require, until

from warmcell import ExecRequest, ExecutionTimeout, InvalidRequest, ProcessBackend
from warmcell.core.errors import BackendUnavailable

MIB = 1024 * 1024


@pytest.fixture(scope="module", params=["bare", "landlock", "bubblewrap", "native"])
def backend(request: pytest.FixtureRequest) -> Iterator[ProcessBackend]:
    with BACKENDS[request.param].make() as made:
        yield made


@pytest.fixture
def run(backend: ProcessBackend) -> Run:
    """Source text of any language, where the contract has steps."""
    return runner(backend)


def commands_matching(word: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if word.encode() in file.read() and int(name) != os.getpid():
                    found.append(int(name))
        except (OSError, ValueError):
            continue
    return found


def test_python(run: Run) -> None:
    result = run("print(6 * 7)")
    assert (result.stdout, result.stderr, result.exit_code, result.signal) == ("42\n", "", 0, None)


def test_shell(run: Run) -> None:
    assert run("echo hello | tr a-z A-Z", "command").stdout == "HELLO\n"


@pytest.mark.needs("node")
def test_javascript(run: Run) -> None:
    code = "import { sep } from 'node:path'; const x = await Promise.resolve(41); console.log(x + 1, sep)"
    assert run(code, "javascript").stdout == "42 /\n"
    assert run("const p = require('path'); console.log(p.basename('/a/b'))", "javascript").stdout == "b\n"


def test_typescript_with_types_enums_and_type_imports(run: Run) -> None:
    code = (
        "import type { Stats } from 'node:fs';\n"
        "enum Level { Low = 1, High = 41 }\n"
        "interface Box<T> { value: T }\n"
        "const box: Box<number> = { value: Level.High };\n"
        "const stats: Stats | null = null;\n"
        "console.log(box.value + 1, stats satisfies unknown);\n"
    )
    try:
        result = run(code, "typescript")
    except BackendUnavailable as error:
        require(False, str(error))
    assert (result.stdout, result.exit_code) == ("42 null\n", 0), result.stderr


@pytest.mark.needs("rustc")
def test_rust_compiles_runs_and_reports_errors(run: Run) -> None:
    assert run('fn main() { println!("{}", 6 * 7); }', "rust", 60).stdout == "42\n"
    broken = run('fn main() { let x: i32 = "a"; }', "rust", 60)
    assert broken.exit_code != 0
    assert "mismatched types" in broken.stderr


@pytest.mark.needs("rustc")
def test_rust_sees_no_host_file_at_compile_time(backend: ProcessBackend, run: Run, tmp_path: os.PathLike[str]) -> None:
    if backend.capabilities().isolation_class == "process":
        pytest.skip("the bare class confines nothing")
    secret = os.path.join(tmp_path, "secret.txt")
    with open(secret, "w") as file:
        file.write("host canary")
    result = run(f'const S: &str = include_str!("{secret}"); fn main() {{ println!("{{}}", S); }}', "rust", 60)
    assert result.exit_code != 0
    assert "host canary" not in result.stdout + result.stderr


@pytest.mark.attack("PT-06")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_signals_are_reported_and_are_not_timeouts(run: Run, number: signal.Signals) -> None:
    result = run(f"import os; os.kill(os.getpid(), {int(number)})")
    assert (result.signal, result.exit_code) == (number, 128 + number)


@pytest.mark.attack("PT-06")
def test_exit_statuses_wrap_as_the_kernel_wraps_them(run: Run) -> None:
    assert run("import sys; sys.exit(256)").exit_code == 0
    assert run("import sys; sys.exit(-1)").exit_code == 255


@pytest.mark.attack("LK-01")
def test_nothing_of_the_host_environment_reaches_the_guest(
    backend: ProcessBackend, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CANARY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "host-secret-canary")
    shown = run("/usr/bin/env; cat /proc/self/environ | tr '\\0' '\\n'; cat /proc/$PPID/environ 2>&1", "command").stdout
    assert "host-secret-canary" not in shown
    if backend.capabilities().isolation_class == "process":
        assert run("/usr/bin/env", "command", env={"A": "b"}).stdout == "A=b\n"
    else:
        names = {line.split("=")[0] for line in run("/usr/bin/env", "command", env={"A": "b"}).stdout.splitlines()}
        assert names - {"PWD"} == {"PATH", "HOME", "TMPDIR", "LANG", "EMAIL", "A"}


@pytest.mark.attack("LK-01")
def test_python_guest_sees_only_its_own_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "host-secret-canary")
    code = "import os; print(dict(os.environ)); print(open('/proc/self/environ').read())"
    shown = run(code, env={"GIVEN": "yes"}).stdout
    assert "host-secret-canary" not in shown
    assert "'GIVEN': 'yes'" in shown


@pytest.mark.attack("LK-02")
def test_no_descriptor_is_inherited(run: Run, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "secret")
    with open(path, "w+") as secret:
        secret.write("host-secret-canary")
        secret.flush()
        os.set_inheritable(secret.fileno(), True)
        code = (
            "import os\n"
            "print(sorted(int(n) for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')))\n"
            "for n in range(3, 256):\n"
            "    try: print(n, os.pread(n, 100, 0))\n"
            "    except OSError: pass\n"
        )
        shown = run(code).stdout
        listed = run("ls -l /proc/self/fd", "command").stdout
    assert "host-secret-canary" not in shown
    assert shown.splitlines()[0] in ("[0, 1, 2]", "[0, 1, 2, 3]")  # 3: the listing itself
    assert path not in listed


@pytest.mark.attack("LK-05")
def test_runs_share_no_files(backend: ProcessBackend, run: Run) -> None:
    places = (
        ["$PWD/left"]
        if backend.capabilities().isolation_class == "process"
        else ["$PWD/left", "$TMPDIR/left", "$HOME/left"]
    )
    for place in places:
        run(f"echo canary > {place}", "command")
        assert "canary" not in run(f"cat {place} 2>&1; true", "command").stdout


@pytest.mark.attack("RX-09")
def test_floods_on_both_streams_are_drained(run: Run) -> None:
    code = "(yes | head -c 30000000) & (yes | head -c 30000000 >&2) & wait; echo end >&2"
    result = run(code, "command")
    assert result.exit_code == 0
    assert result.stdout_truncated
    assert result.stderr_truncated


@pytest.mark.attack("RX-12")
def test_timeout_kills_the_whole_tree(run: Run) -> None:
    marker = f"4{os.getpid() % 10000}.25"
    started = time.monotonic()
    with pytest.raises(ExecutionTimeout) as caught:
        run(
            f"echo partial; sleep {marker} & setsid sleep {marker} & (setsid sh -c 'sleep {marker} & wait') & wait",
            "command",
            1,
        )
    assert time.monotonic() - started < PATIENCE
    assert caught.value.timeout == 1
    assert caught.value.result is not None
    assert caught.value.result.stdout == "partial\n"
    assert commands_matching(marker) == []


@pytest.mark.attack("RX-13")
@pytest.mark.attack("RX-14")
def test_background_children_neither_survive_nor_delay(run: Run) -> None:
    marker = f"5{os.getpid() % 10000}.25"
    started = time.monotonic()
    result = run(f"sleep {marker} & setsid sleep {marker} & echo done", "command")
    assert result.stdout == "done\n"
    assert time.monotonic() - started < PATIENCE
    assert commands_matching(marker) == []


@pytest.mark.attack("RX-15")
def test_ignoring_signals_and_stopping_itself_does_not_help(run: Run) -> None:
    code = (
        "import os, signal\n"
        "for n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
        "if os.fork() == 0:\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    started = time.monotonic()
    with pytest.raises(ExecutionTimeout):
        run(code, timeout=1)
    assert time.monotonic() - started < PATIENCE


@pytest.mark.attack("PT-03")
def test_large_code_does_not_go_into_the_argument_list(run: Run) -> None:
    code = "x = 1\n" * 300_000 + "print('end')"
    assert run(code, timeout=60).stdout == "end\n"
    with pytest.raises(InvalidRequest, match="code"):
        run("#" * (9 * MIB))


@pytest.mark.attack("PT-09")
async def test_cancellation_leaves_nothing(backend: ProcessBackend) -> None:
    marker = f"6{os.getpid() % 10000}.25"
    task = asyncio.create_task(backend.execute(ExecRequest("command", f"sleep {marker} & sleep {marker}", 600)))  # type: ignore[arg-type]
    while not commands_matching(f"sleep\0{marker}"):
        await asyncio.sleep(0.02)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < PATIENCE
    assert commands_matching(marker) == []
    assert (await backend.execute(ExecRequest("python", "print(1)", 20))).stdout == "1\n"  # type: ignore[arg-type]


def test_nothing_is_left_after_many_ends(backend: ProcessBackend, run: Run) -> None:
    run("pass")
    before = len(os.listdir("/proc/self/fd"))
    for code in ("1/0", "import os; os._exit(9)", "import os; os.kill(os.getpid(), 9)", "print('x' * 100000)"):
        for _ in range(25):
            run(code)
    # The pool may keep as many cells ready, each with its counters, and may be making or closing another.
    kept = (backend.config.pool_size + 1) * backend._launcher.pool.descriptors_of_a_cell
    assert kept < 100
    until(lambda: len(os.listdir("/proc/self/fd")) < before + max(kept, 30))
