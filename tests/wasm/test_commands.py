"""Toolbox commands as a caller of `ToolboxRunner` and `Sandbox(backend="wasm")` sees them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require
from tests.wasm import guests
from tests.wasm.conftest import take_limits

from warmcell.backends.wasm.guest import WasmGuest
from warmcell.backends.wasm.pool import WorkerPool
from warmcell.backends.wasm.run_request import Preopen
from warmcell.backends.wasm.toolbox_runner import ToolboxRunner
from warmcell.core.errors import (
    BackendUnavailable,
    CommandNotFound,
    ExecutionTimeout,
    FuelExhausted,
    InvalidRequest,
    MemoryExceeded,
)
from warmcell.core.types import ExecResult, Language
from warmcell.sandbox.interface import RunOptions
from warmcell.sandbox.local.guest_config import GuestConfig
from warmcell.toolbox import loader

Command = Callable[..., ExecResult]


def _needs(module: str) -> None:
    try:
        loader.find_artefact(module)
    except BackendUnavailable as error:
        require(False, str(error))


@pytest.fixture(scope="module")
def toolbox() -> Iterator[ToolboxRunner]:
    made = ToolboxRunner()
    yield made
    made.close()


@pytest.fixture
def command(toolbox: ToolboxRunner, tmp_path: Path) -> Command:
    def command(*argv: str, **options: Any) -> ExecResult:
        preopens = (Preopen(tmp_path, "/work", True),)
        limits = take_limits(options, timeout=20)
        fields = {"preopens": preopens, "cwd": "/work", **options}
        return toolbox.run_command(argv, limits, **fields)

    return command


def test_an_unknown_command_is_not_found(command: Command) -> None:
    for name in ("nosuch", "/bin/nosuch", "../../bin/sh-not"):
        with pytest.raises(CommandNotFound, match=r"nosuch|sh-not"):
            command(name)


@pytest.mark.parametrize("options", [{"cwd": "/a\0b"}, {"env": {"A": "\0"}}, {"timeout": 0}, {"fuel": -1}])
def test_options_are_checked(command: Command, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        command("node", **options)


def test_arguments_with_nul_are_refused(command: Command) -> None:
    with pytest.raises(InvalidRequest, match="argv"):
        command("node", "-e", "1\0 2")


class TestNode:
    @pytest.fixture(autouse=True)
    def _module(self) -> None:
        _needs("node")

    def test_it_sees_its_arguments_directory_and_environment(self, command: Command, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("content")
        code = "console.log(process.cwd(), process.env.A, fs.readFileSync('file', 'utf8'))"
        result = command("node", "-e", f"const fs = require('fs'); {code}", env={"A": "given"})
        assert result.stdout == "/work given content\n"
        assert result.enforced.filesystem_write == "wasi preopens"

    def test_a_module_that_is_run_by_its_path(self, command: Command) -> None:
        assert command("/usr/bin/node", "-p", "6*7").stdout == "42\n"

    def test_limits_hold(self, command: Command) -> None:
        with pytest.raises(ExecutionTimeout):
            command("node", "-e", "for (;;);", timeout=0.5)
        with pytest.raises(MemoryExceeded) as caught:
            command("node", "-e", "const a = []; for (;;) a.push(new Array(10000).fill(1))", memory_limit_mb=48)
        assert caught.value.limit_mb == 48
        with pytest.raises(FuelExhausted):
            command("node", "-e", "for (;;);", fuel=10_000_000, timeout=120)

    def test_fetch_reaches_the_host(self, command: Command) -> None:
        def fetch(raw: bytes) -> bytes:
            return json.dumps({"error": {"code": "x", "message": f"asked for {json.loads(raw)['url']}"}}).encode()

        code = "fetch('https://example.org/').catch(error => console.log(String(error.message ?? error)))"
        assert "asked for https://example.org/" in command("node", "-e", code, fetch=fetch).stdout
        assert "networking is disabled" in command("node", "-e", code).stdout

    def test_one_run_leaves_nothing_for_the_next(self, command: Command) -> None:
        command("node", "-e", "globalThis.secret = 1; process.env.SECRET = '1'")
        assert command("node", "-p", "typeof secret + typeof process.env.SECRET").stdout == "undefinedundefined\n"


class TestGit:
    def test_a_repository(self, command: Command, tmp_path: Path) -> None:
        _needs("git")
        (tmp_path / "file").write_text("x")
        env = {"HOME": "/work"}
        for line in (
            ["init"],
            ["add", "file"],
            ["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-m", "y"],
        ):
            result = command("git", *line, env=env, timeout=60)
            assert result.exit_code == 0, result.stderr
        assert (tmp_path / ".git" / "HEAD").exists()


@pytest.mark.xdist_group("python component")  # one test process builds it
class TestPython:
    @pytest.fixture(autouse=True)
    def _module(self) -> None:
        from warmcell.toolbox import python_component

        try:
            python_component.ensure_component()
        except python_component.ComponentUnavailable as missing:
            require(False, str(missing))

    def test_it_sees_its_arguments_directory_input_and_environment(self, command: Command, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("content")
        code = (
            "import os, sys; print(os.getcwd(), os.environ['A'], sys.argv[1:], sys.stdin.read(), open('file').read())"
        )
        result = command("python3", "-c", code, "x", env={"A": "given"}, stdin=b"typed", timeout=120)
        assert result.stdout == "/work given ['x'] typed content\n", result.stderr

    @pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
    def test_its_deadline_holds(self, command: Command, code: str) -> None:
        with pytest.raises(ExecutionTimeout) as caught:
            command("python3", "-c", f"print('so far', flush=True)\n{code}", timeout=2)
        assert caught.value.result is not None
        assert caught.value.result.stdout == "so far\n"

    def test_its_memory_is_bounded(self, command: Command) -> None:
        with pytest.raises(MemoryExceeded):
            command("python3", "-c", "a = []\nwhile True: a.append('x' * 100000)", memory_limit_mb=64)

    def test_how_it_ends_is_kept(self, command: Command) -> None:
        assert command("python3", "-c", "raise SystemExit(3)").exit_code == 3
        assert "ZeroDivisionError" in command("python3", "-c", "1/0").stderr

    def test_one_run_leaves_nothing_for_the_next(self, command: Command) -> None:
        command("python3", "-c", "import builtins; builtins.secret = 1")
        assert command("python3", "-c", "import builtins; print(hasattr(builtins, 'secret'))").stdout == "False\n"


class TestShell:
    @pytest.fixture(autouse=True)
    def _module(self) -> None:
        _needs("toolbox")

    def test_a_pipeline(self, command: Command) -> None:
        assert command("sh", "-c", "echo hi | wc -c").stdout.strip() == "3"

    def test_unknown_commands_inside_a_script(self, command: Command) -> None:
        result = command("sh", "-c", "nosuch; echo $?")
        assert result.stdout == "127\n"
        assert "nosuch" in result.stderr

    def test_an_endless_pipeline_ends_at_its_deadline(self, command: Command) -> None:
        with pytest.raises(ExecutionTimeout) as caught:
            command("sh", "-c", "echo so far; yes > /dev/null", timeout=2)
        assert caught.value.result is not None
        assert caught.value.result.stdout == "so far\n"

    def test_a_flood_is_capped(self, command: Command) -> None:
        result = command("sh", "-c", "yes | head -c 3000000")
        assert result.stdout_truncated
        assert len(result.stdout_bytes) == 1 << 20

    def test_output_of_other_modules_is_not_cut_silently(self, command: Command) -> None:
        _needs("node")
        flood = "node -e 'console.log(\"x\".repeat(3000000))'"
        assert command("sh", "-c", flood).stdout_truncated
        assert "output limit exceeded" in command("sh", "-c", f"{flood} > file").stderr

    def test_sleep_ends_at_the_deadline(self, command: Command) -> None:
        with pytest.raises(ExecutionTimeout):
            command("sleep", "60", timeout=0.5)

    def test_other_modules_are_reached_by_exec(self, command: Command) -> None:
        _needs("node")
        result = command("sh", "-c", "echo 41 | node -e 'process.stdin.on(\"data\", d => console.log(Number(d) + 1))'")
        assert result.stdout == "42\n", result.stderr

    def test_an_inner_loop_ends_with_the_script(self, command: Command) -> None:
        _needs("node")
        with pytest.raises(ExecutionTimeout):
            command("sh", "-c", "node -e 'for (;;);'; echo after", timeout=2)

    def test_links_do_not_lead_out(self, command: Command, tmp_path: Path) -> None:
        canary = tmp_path.parent / f"{tmp_path.name}-canary"
        canary.write_text("canary")
        (tmp_path / "link").symlink_to(canary)
        for path in ("link", f"../{canary.name}", str(canary)):
            assert "canary\n" not in command("sh", "-c", f"cat {path}; echo x > {path}").stdout
        assert canary.read_text() == "canary"


class TestGuest:
    """The adapter between a sandbox and the toolbox."""

    @pytest.fixture
    def work(self, tmp_path: Path) -> Path:
        (tmp_path / "work").mkdir()
        return tmp_path / "work"

    async def test_wasm_code_sees_the_work_directory(self, work: Path) -> None:
        guest = WasmGuest(GuestConfig(str(work)))
        try:
            result = await guest.code(guests.prints("ran\n"), Language.WASM, RunOptions(timeout=20))
            assert result.stdout == "ran\n"
            assert result.enforced.filesystem_write == "wasi preopens"
        finally:
            await guest.aclose()

    async def test_a_language_that_it_does_not_run_is_refused(self, work: Path) -> None:
        guest = WasmGuest(GuestConfig(str(work)))
        try:
            for language in (Language.RUST, Language.TYPESCRIPT):
                with pytest.raises(InvalidRequest, match="language"):
                    await guest.code("x", language, RunOptions())
        finally:
            await guest.aclose()

    async def test_a_guest_takes_the_workers_of_its_directories_along(self, work: Path, no_workers: WorkerPool) -> None:
        first, second = WasmGuest(GuestConfig(str(work))), WasmGuest(GuestConfig(str(work)))
        for guest in (first, second):
            await guest.code(guests.prints("x"), Language.WASM, RunOptions(timeout=20))
        pids = no_workers.pids
        await first.aclose()
        await first.aclose()
        assert (await second.code(guests.prints("y"), Language.WASM, RunOptions(timeout=20))).stdout == "y"
        temporary = second._temporary.path
        await second.aclose()
        assert not os.path.exists(temporary)
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)

    async def test_a_coroutine_answers_fetch(self, work: Path) -> None:
        _needs("node")

        async def fetch(raw: bytes) -> bytes:
            await asyncio.sleep(0)
            return json.dumps({"error": {"code": "x", "message": "from the loop"}}).encode()

        guest = WasmGuest(GuestConfig(str(work), fetch=fetch))
        try:
            code = "fetch('https://example.org/').catch(error => console.log(String(error.message ?? error)))"
            assert "from the loop" in (await guest.command(("node", "-e", code), RunOptions(timeout=20))).stdout
        finally:
            await guest.aclose()
