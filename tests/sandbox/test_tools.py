"""`sandbox.tools()`: what models are offered, and that whatever they send comes back as data."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sandbox.fakes import Factory

from warmcell import AsyncSandbox, Denial, InvalidRequest, Sandbox, SandboxDestroyed, SandboxTool
from warmcell.core.types import ExecResult
from warmcell.sandbox.tools.calls import MAX_PORTS, MAX_SAVED_RUNS

NAMES = ["run_code", "run_command", "read_file", "write_file", "list_files", "apply_patch"]


def test_the_tools_of_each_backend(sandbox: Sandbox) -> None:
    tools = sandbox.tools()
    assert [tool.name for tool in tools] == NAMES
    run_code = tools["run_code"]
    assert run_code.parameters["properties"]["language"]["enum"] == ["python", "command"]
    assert "no network access" in run_code.description
    assert str(inspect.signature(run_code)).startswith("(*, code: str, language: str = 'python'")
    for form in (tools.to_openai(), tools.to_openai("responses"), tools.to_anthropic(), tools.to_json_schema()):
        assert len(json.loads(json.dumps(form))) == len(NAMES)
    assert tools.to_openai()[0]["function"]["parameters"] == tools.to_anthropic()[0]["input_schema"]
    assert tools.to_openai("responses")[0]["name"] == tools.to_json_schema()[0]["title"] == "run_code"


def test_languages_can_be_restricted(sandbox: Sandbox, factory: Factory) -> None:
    tools = sandbox.tools(languages=["python"])
    assert [tool.name for tool in tools] == ["run_code", *NAMES[2:]]
    with pytest.raises(KeyError, match="run_command"):
        tools["run_command"]
    refused = tools["run_code"](code="id", language="bash")
    assert refused["status"] == "error"
    assert "one of python" in refused["stderr"]
    assert factory.guest.calls == []


SERVES = """
import http.server, threading
server = http.server.HTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""


@pytest.mark.needs("user namespaces")
def test_a_server_that_run_code_left_running_is_reachable() -> None:
    with Sandbox() as sandbox:
        assert "expose_port" not in [tool.name for tool in sandbox.tools(stateful=False)]
        tools = sandbox.tools()
        tools["write_file"](path="a.txt", content="served")
        assert tools["run_code"](code=SERVES)["exit_code"] == 0
        port = tools["expose_port"](port=8000)
        assert (port["status"], port["guest_port"]) == ("success", 8000), port
        with urllib.request.urlopen(f"http://{port['host']}:{port['port']}/a.txt", timeout=30) as answer:
            assert answer.read() == b"served"
        assert tools["expose_port"](port=8000) == port
        assert {tools["expose_port"](port=9000 + n)["status"] for n in range(15)} == {"success"}
        assert "16 ports are exposed already" in tools["expose_port"](port=9999)["stderr"]


@pytest.mark.needs("user namespaces")
async def test_ports_that_are_exposed_at_the_same_time() -> None:
    """One port for all calls that ask for it, and no more than the limit."""
    async with AsyncSandbox() as sandbox:
        expose: Any = sandbox.tools()["expose_port"]
        answers = await asyncio.gather(*(expose(port=8000) for _ in range(4)))
        assert len({answer["port"] for answer in answers}) == 1, answers
        answers = await asyncio.gather(*(expose(port=9000 + number) for number in range(20)))
        assert [answer["status"] for answer in answers].count("success") == MAX_PORTS - 1


@pytest.mark.needs("user namespaces")
def test_max_timeout_bounds_what_a_model_may_ask_for() -> None:
    with Sandbox(timeout=60) as sandbox:
        run_code = sandbox.tools(max_timeout=5)["run_code"]
        rule = run_code.parameters["properties"]["timeout_secs"]
        assert (rule["maximum"], rule["default"]) == (5, 5)
        assert "from 1 to 5" in run_code(code="1", timeout_secs=6)["stderr"]
        with pytest.raises(InvalidRequest, match="max_timeout"):
            sandbox.tools(max_timeout=0)


@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize(
    ("language", "first", "second"),
    [("python", "x = 41", "print(x + 1)"), ("javascript", "x = 41", "console.log(x + 1)"), ("sh", "x=42", "echo $x")],
)
def test_languages_with_sessions_keep_their_state(language: str, first: str, second: str) -> None:
    with Sandbox() as sandbox:
        if language not in ("sh", *map(str, sandbox.capabilities().supported_languages)):
            pytest.skip(f"this host has no {language}")
        run_code = sandbox.tools()["run_code"]
        assert run_code(code=first, language=language)["exit_code"] == 0
        assert run_code(code=second, language=language)["stdout"] == "42\n"


@pytest.mark.needs("user namespaces")
def test_interpreters_that_end_leave_no_descriptors() -> None:
    """A model may end them again and again."""
    end = "import os; os._exit(1)"
    with Sandbox() as sandbox:
        run_code = sandbox.tools()["run_code"]
        run_code(code=end)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(4):
            assert run_code(code="print(1)")["exit_code"] == 0
            assert run_code(code=end)["status"] == "error"
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 2


SHOWS = "class Image:\n    def _repr_png_(self): return {!r}\nImage()"


@pytest.mark.needs("user namespaces")
def test_images_of_a_new_interpreter_replace_no_earlier_ones() -> None:
    """Both cells are the first ones of their interpreters."""
    with Sandbox() as sandbox:
        run_code = sandbox.tools()["run_code"]
        answers = [run_code(code=SHOWS.format(data), restart=True) for data in (b"first", b"second")]
        paths = [answer["outputs"][0]["path"] for answer in answers]
        assert [sandbox.read_file(path) for path in paths] == [b"first", b"second"]


def test_runs_go_into_the_sandbox(sandbox: Sandbox, factory: Factory) -> None:
    tools = sandbox.tools()
    answer = tools["run_code"](code="print(1)", language="PY", stdin="in", timeout_secs=7)
    assert (answer["status"], answer["stdout"]) == ("success", "code:python print(1)")
    tools.call("run_command", '{"command": "ls"}')
    assert [(kind, what, job.stdin, job.timeout) for kind, what, job in factory.guest.calls] == [
        ("code:python", "print(1)", "in", 7.0),
        ("script", "ls", None, 30.0),
    ]


def test_files_patches_and_lists(sandbox: Sandbox) -> None:
    tools = sandbox.tools()
    assert tools["write_file"](path="d/a.txt", content="1\n2\n3\n") == {
        "status": "success",
        "path": "d/a.txt",
        "size": 6,
    }
    assert tools["read_file"](path="d/a.txt", first_line=2, max_lines=1) == {
        "status": "success",
        "path": "d/a.txt",
        "size": 6,
        "content": "2\n",
        "total_lines": 3,
        "truncated": True,
    }
    patch = "*** Begin Patch\n*** Update File: d/a.txt\n-{}\n+two\n*** End Patch"
    assert tools["apply_patch"](patch=patch.format(2))["changes"] == [{"path": "d/a.txt", "kind": "modified"}]
    refused = tools["apply_patch"](patch=patch.format(2))
    assert (refused["status"], refused["fault"]) == ("error", "caller")
    assert "the line '2' was not found" in refused["misfits"][0]["reason"]
    assert [entry["path"] for entry in tools["list_files"](recursive=True)["entries"]] == ["d", "d/a.txt"]
    assert [entry["path"] for entry in tools["list_files"](path="d")["entries"]] == ["d/a.txt"]
    sandbox.write_file("b", b"\0\1")
    assert tools["read_file"](path="b") == {
        "status": "success",
        "path": "b",
        "size": 2,
        "is_binary": True,
        "content": "",
    }


def long_output(monkeypatch: pytest.MonkeyPatch, factory: Factory, text: str) -> None:
    async def run(kind: str, what: Any, job: object) -> ExecResult:
        return ExecResult(stdout=text)

    monkeypatch.setattr(factory.guest, "_run", run)


def test_long_output_is_cut_in_the_middle_and_saved_in_full(
    sandbox: Sandbox, factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_output(monkeypatch, factory, "first" + "x" * 1000 + "last")
    tools = sandbox.tools(max_text=100)
    answer = tools["run_command"](command="x")
    assert answer["truncated"]
    assert answer["stdout"].startswith("first")
    assert answer["stdout"].endswith("last")
    assert len(answer["stdout"]) < 200
    assert sandbox.read_text(answer["full_output"]["stdout"]) == "first" + "x" * 1000 + "last"
    for _ in range(MAX_SAVED_RUNS):
        tools["run_command"](command="x")
    assert len(sandbox.list_dir(".tool-output")) == MAX_SAVED_RUNS


def test_links_in_the_way_of_saved_output_are_not_followed(
    sandbox: Sandbox, factory: Factory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    os.symlink(tmp_path / "out", f"{sandbox.work_dir}/.tool-output")
    long_output(monkeypatch, factory, "x" * 1000)
    answer = sandbox.tools(max_text=100)["run_command"](command="x")
    assert answer["status"] == "success"
    assert "full_output" not in answer
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.attack("LK-11")
def test_a_file_can_be_read_from_any_line(sandbox: Sandbox) -> None:
    sandbox.write_file("long", "\n".join(map(str, range(1, 150_001))))
    answer = sandbox.tools()["read_file"](path="long", first_line=149_999)
    assert (answer["content"], answer["total_lines"]) == ("149999\n150000", 150_000)
    sandbox.write_file("page", "a\fb\u2028c\r\nd\n")
    answer = sandbox.tools()["read_file"](path="page", first_line=2)
    assert (answer["content"], answer["total_lines"]) == ("d\n", 2)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("read_file", {"path": "none"}),
        ("read_file", {"path": "../../secret"}),
        ("read_file", {"path": "/etc/passwd"}),
        ("read_file", {"path": "link"}),
        ("write_file", {"path": "link/x", "content": "x"}),
        ("write_file", {"path": ".", "content": "x"}),
        ("list_files", {"path": "link"}),
        ("run_command", {"command": "x", "cwd": "none"}),
        ("run_command", {"command": "x", "cwd": ".."}),
        ("apply_patch", {"patch": "*** Begin Patch\n*** Delete File: link/x\n*** End Patch"}),
        ("read_file", {}),
        ("read_file", {"path": 3}),
        ("read_file", {"path": "x", "first_line": True}),
        ("read_file", {"path": "x", "max_lines": 10**5000}),
        ("run_code", {"code": "x", "timeout_secs": float("nan")}),
        ("run_code", {"code": "x", "timeout_secs": 1.5}),
        ("run_code", {"code": "\ud800"}),
        ("run_code", {"code": "x", "language": "../../bin/sh"}),
        ("none", {}),
        ("read_file", "{"),
        ("read_file", "[" * 100_000),
        ("read_file", None),
        ("read_file", [1]),
    ],
)
def test_answers_to_wrong_calls_contain_no_host_paths(
    sandbox: Sandbox, factory: Factory, tmp_path: Path, name: str, args: Any
) -> None:
    os.symlink(tmp_path, f"{sandbox.work_dir}/link")
    answer = sandbox.tools().call(name, args)
    assert (answer["status"], answer["fault"]) == ("error", "caller"), answer
    assert str(tmp_path) not in json.dumps(answer)
    assert factory.guest.calls == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.dictionaries(
        st.sampled_from(["code", "command", "path", "content", "patch", "timeout_secs", "cwd", "recursive", "x"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.text(max_size=3)),
    ),
)
def test_every_call_returns_data(sandbox: Sandbox, name: str, args: dict[str, Any]) -> None:
    answer = sandbox.tools().call(name, args)
    assert answer["status"] in ("success", "error")
    json.dumps(answer)


@pytest.mark.attack("PT-09")
async def test_cancelling_a_call_ends_the_run(factory: Factory) -> None:
    async with AsyncSandbox(guest_factory=factory) as sandbox:
        factory.guest.delay = 60
        task = asyncio.ensure_future(sandbox.tools()["run_code"](code="x"))
        while not factory.guest.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert factory.guest.cancelled == 1
        factory.guest.delay = 0
        assert (await sandbox.tools()["run_code"](code="x"))["status"] == "success"


@pytest.mark.parametrize("is_async", [True, False])
async def test_sandbox_tool_accepts_a_sandbox(factory: Factory, is_async: bool) -> None:
    sandbox: Any = AsyncSandbox(guest_factory=factory) if is_async else Sandbox(guest_factory=factory)
    tool = SandboxTool(sandbox)
    assert "python, command" in tool.description
    answer = await tool.execute({"language": "python", "code": "x", "stdin": "in", "timeout_secs": 3})
    assert answer["stdout"] == "code:python x"
    assert (factory.guest.calls[0][2].stdin, factory.guest.calls[0][2].timeout) == ("in", 3.0)
    with pytest.raises(InvalidRequest):
        SandboxTool(sandbox, env={"A": "b"})
    factory.guest.delay = 60
    task = asyncio.ensure_future(tool.execute({"language": "python", "code": "y"}))
    while len(factory.guest.calls) < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert factory.guest.cancelled == 1
    await sandbox.destroy() if is_async else sandbox.destroy()
    assert (await tool.execute({"language": "python", "code": "x"}))["status"] == "error"


def test_a_denial_has_a_hint(sandbox: Sandbox, factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(kind: str, what: Any, job: object) -> ExecResult:
        return ExecResult(
            exit_code=1, denials=[Denial("network", "a.example:443", "networkRules", "allow_domain(...)")]
        )

    monkeypatch.setattr(factory.guest, "_run", run)
    answer = sandbox.tools()["run_code"](code="x")
    assert answer["denials"] == [
        {"kind": "network", "what": "a.example:443", "rule": "networkRules", "hint": "allow_domain(...)"}
    ]


def test_a_destroyed_sandbox_has_no_tools(sandbox: Sandbox) -> None:
    tools = sandbox.tools()
    sandbox.destroy()
    assert tools["run_code"](code="x")["status"] == "error"
    for ask in (sandbox.tools, sandbox.capabilities):
        with pytest.raises(SandboxDestroyed):
            ask()
