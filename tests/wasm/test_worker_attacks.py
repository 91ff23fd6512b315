"""Attacks on WASM workers: what a guest does to its worker must not affect other runs or the host."""

from __future__ import annotations

import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import until
from tests.wasm import guests
from tests.wasm.conftest import run_once
from tests.wasm.host_calls import asks, own

from warmcell import Sandbox
from warmcell.backends.wasm import supervisor as wasm_supervisor
from warmcell.backends.wasm.channel import Frame
from warmcell.backends.wasm.module_loader import LoadRequest, ModuleCache, ModuleLoader
from warmcell.backends.wasm.pool import WorkerPool
from warmcell.backends.wasm.run_request import Preopen, RunRequest
from warmcell.backends.wasm.supervisor import HostCalls, Supervisor
from warmcell.backends.wasm.toolbox_runner import ToolboxRunner
from warmcell.backends.wasm.worker_handle import PendingRequest, RequestLimits
from warmcell.core.types import MIB, ExecResult
from warmcell.guest.wasm.protocol import ProtocolViolation, RunLimits
from warmcell.lifetime.run import Run
from warmcell.toolbox.signed_directory import SignedFile

#: The host must not grow by this much while a guest sends something large.
_MUCH_MEMORY = 150 << 20


@pytest.fixture(scope="module")
def toolbox() -> Iterator[ToolboxRunner]:
    made = ToolboxRunner()
    yield made
    made.close()


def node(toolbox: ToolboxRunner, code: str, asked: list[bytes]) -> ExecResult:
    def fetch(raw: bytes) -> bytes:
        asked.append(raw)
        return b'{"status": 200, "headers": {}, "body": "", "url": "x"}'

    return toolbox.run_command(("node", "-e", code), RunLimits(60), fetch=fetch)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.attack("S2-34")
class TestMessages:
    @pytest.mark.parametrize("place", ["whole", "url", "headers", "unknown"])
    def test_the_host_never_parses_json_of_a_guest(self, toolbox: ToolboxRunner, place: str) -> None:
        """A guest can replace node's `JSON.stringify`, and sends millions of empty lists."""
        asked: list[bytes] = []
        node(toolbox, "fetch('http://127.0.0.1/')", asked)
        lists = "'[' + '[],'.repeat(5_000_000) + '[]]'"
        text = {
            "whole": lists,
            "url": "'{\"url\":' + " + lists + " + '}'",
            "headers": '\'{"url":"http://127.0.0.1/","headers":{"a":\' + ' + lists + " + '}}'",
            "unknown": '\'{"url":"http://127.0.0.1/","extra":\' + ' + lists + " + '}'",
        }[place]
        before = peak_memory()
        code = f"const text = {text}; JSON.stringify = () => text; fetch('http://127.0.0.1/').catch(() => 0)"
        node(toolbox, code, asked)
        assert peak_memory() - before < _MUCH_MEMORY
        assert len(asked) == 1

    def test_a_too_long_request_is_refused_and_the_run_continues(self, toolbox: ToolboxRunner) -> None:
        asked: list[bytes] = []
        code = "fetch('http://127.0.0.1/' + 'x'.repeat(100_000)).catch(error => console.log('refused'))"
        assert node(toolbox, code, asked).stdout == "refused\n"
        assert asked == []

    def test_body_arrives_unchanged(self, toolbox: ToolboxRunner) -> None:
        asked: list[bytes] = []
        code = "fetch('http://127.0.0.1/', {method: 'POST', body: 'x'.repeat(1_000_000), headers: {A: 'b'}})"
        node(toolbox, code, asked)
        request = json.loads(asked[0])
        assert (request["method"], len(request["body"])) == ("POST", 4 * 333_334)


@pytest.mark.attack("S2-36")
class TestExhaustion:
    def test_a_shell_that_opened_all_it_may_learns_nothing_of_the_host(self, tmp_path: Path) -> None:
        with Sandbox(tmp_path, backend="wasm") as sandbox:
            sandbox.write_file("f", "content")
            greedy = 'for i in $(seq 3 5000); do eval "exec $i<f" 2>/dev/null || break; done; '
            result = sandbox.sh(greedy + "git --version; node -p 1+1; git nonsense; echo ended")
        assert result.stdout.endswith("ended\n")
        assert "git version" in result.stdout and "\n2\n" in result.stdout
        for text in (result.stdout, result.stderr):
            assert str(tmp_path) not in text
            assert "Traceback" not in text and "/proc/" not in text and "/mnt/" not in text

    def test_the_next_run_in_the_same_worker_is_as_good_as_any(self, toolbox: ToolboxRunner, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("content")
        preopens = [Preopen(tmp_path, "/work", True)]
        code = "const fs = require('fs'); try { for (;;) fs.openSync('f') } catch (error) { console.log('full') }"
        for _ in range(3):
            result = toolbox.run_command(("node", "-e", code), RunLimits(30), cwd="/work", preopens=preopens)
            assert result.stdout == "full\n"
        assert toolbox.run_command(("cat", "f"), RunLimits(30), cwd="/work", preopens=preopens).stdout == "content"


@pytest.mark.attack("S2-37")
class TestDisagreement:
    INNER = own(guests.prints("inner ran\n").replace('(export "_start")', '(export "run")'))

    def test_a_module_that_failed_to_load_is_loaded_on_the_next_use(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The worker gets damaged code during a run; its next run is of the same module."""
        pool = WorkerPool(1)
        supervisor = Supervisor(ModuleCache(tmp_path / "cache" / "wasm"), pool)
        request = RunRequest(("guest",), RunLimits(20, 64 * MIB))
        try:
            with monkeypatch.context() as patch:
                patch.setattr(ModuleLoader, "find_compiled", find_damaged)
                asked = run_once(
                    supervisor, own(asks("exec", {"argv": ["inner"]})), request, commands=lambda _: self.INNER
                )
            assert "error" in json.loads(asked.stdout)
            workers = pool.pids
            assert run_once(supervisor, self.INNER, request).stdout == "inner ran\n"
            assert pool.pids == workers
        finally:
            supervisor.close()

    def test_a_worker_that_forgot_a_module_gets_it_again(self, tmp_path: Path) -> None:
        pool = WorkerPool(1)
        supervisor = Supervisor(ModuleCache(tmp_path / "cache" / "wasm"), pool)
        request = RunRequest(("guest",), RunLimits(20, 64 * MIB))
        try:
            run_once(supervisor, own(guests.LOOP.replace("_start", "run").replace("(loop", "(block")), request)
            (worker,) = pool.ready()
            worker.loaded[LoadRequest(self.INNER, False).key] = None
            assert run_once(supervisor, self.INNER, request).stdout == "inner ran\n"
            assert pool.pids == [worker.pid]
        finally:
            supervisor.close()


class SentMessages:
    """In place of a worker's channel. Keeps the messages, and for how long each waits to be read."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.timeouts: list[float] = []

    def send(self, message: dict[str, Any], *_: object, timeout: float) -> None:
        self.timeouts.append(timeout)
        self.messages.append(message)


@pytest.mark.attack("S3-05")
class TestForgedHostCalls:
    """Of a guest that took its worker over."""

    def test_a_worker_has_one_fetch_at_a_time(self) -> None:
        release = threading.Event()

        def fetch(_raw: bytes) -> bytes:
            release.wait()
            return b"{}"

        calls, sent = make_calls(20, fetch)
        call = Frame({"op": "call", "what": "fetch", "url": "x"})
        try:
            calls.handle(call)
            with pytest.raises(ProtocolViolation):
                calls.handle(call)
        finally:
            release.set()
        until(lambda: sent.messages)
        calls.handle(call)
        until(lambda: len(sent.messages) == 2)

    def test_a_worker_that_reads_no_answers_gets_no_more_of_them(self) -> None:
        """Each of them waits in memory, with a thread, for a while."""
        release = threading.Event()
        sending: list[object] = []

        class FullChannel(SentMessages):
            def send(self, message: dict[str, Any], *_: object, timeout: float) -> None:
                sending.append(message)
                release.wait()

        calls, _ = make_calls(20, lambda _raw: b"{}")
        calls._worker.channel = FullChannel()  # type: ignore[assignment]
        call = Frame({"op": "call", "what": "fetch", "url": "x"})
        try:
            for number in range(1, wasm_supervisor._MOST_UNREAD + 1):
                calls.handle(call)
                until(lambda number=number: len(sending) == number)  # type: ignore[misc]
            with pytest.raises(ProtocolViolation):
                calls.handle(call)
        finally:
            release.set()
        until(lambda: calls._room._value == wasm_supervisor._MOST_UNREAD)
        calls.handle(call)

    def test_an_answer_that_is_not_read_waits_no_longer_than_the_run(self) -> None:
        calls, sent = make_calls(0.5)
        calls.handle(Frame({"op": "call", "what": "command", "name": "unknown"}))
        assert sent.messages[0]["is_found"] is False
        assert sent.timeouts[0] <= 0.5


def make_calls(seconds: float, fetch: Callable[[bytes], bytes] | None = None) -> tuple[HostCalls, SentMessages]:
    sent = SentMessages()
    worker: Any = SimpleNamespace(channel=sent)
    lease: Any = SimpleNamespace(worker=worker)
    loader: Any = None
    pending = PendingRequest(worker, RequestLimits(seconds, MIB))
    request = RunRequest(("guest",), RunLimits(seconds), fetch=fetch)
    return HostCalls(pending, lease, loader, request, lambda _name: None, Run()), sent


def find_damaged(_loader: ModuleLoader, load: LoadRequest) -> SignedFile | None:
    """Only for the inner module; the outer one is compiled as usual."""
    if load.source is not TestDisagreement.INNER:
        return None
    descriptor = os.memfd_create("damaged")
    os.write(descriptor, b"no machine code")
    facts = {
        "entry": "run",
        "has_exit_code": False,
        "is_go": False,
        "has_visible_memory": True,
        "counts_refusals": False,
    }
    return SignedFile(descriptor, facts)
