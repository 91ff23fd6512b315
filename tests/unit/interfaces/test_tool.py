"""SandboxTool: whatever a model sends, data comes back, and nothing that it sends widens anything."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell import (
    BackendCapabilities,
    BackendUnavailable,
    Denial,
    EnforcedLimits,
    EnforcerUnavailable,
    ExecResult,
    ExecutionFailed,
    ExecutionTimeout,
    FakeBackend,
    FuelExhausted,
    InvalidRequest,
    MemoryExceeded,
    PolicyViolation,
    SandboxTool,
    Usage,
)
from warmcell.backends.fake import Answer, FakeMemoryExceeded, FakeTimeout
from warmcell.sandbox.tools.toolset import check_language

GOOD = {"language": "python", "code": "print(1)"}


async def answer_to(reply: Answer, args: Any = None, **options: Any) -> dict[str, Any]:
    return await SandboxTool(FakeBackend([reply]), **options).execute(GOOD if args is None else args)


def test_what_it_says_about_itself() -> None:
    tool = SandboxTool(FakeBackend(languages=["python", "command"]))
    assert tool.name == "sandbox_exec"
    assert tool.required_scopes == ("code:execute",)
    assert "python, command" in tool.description
    schema = tool.parameters_schema()
    assert schema["required"] == ["language", "code"]
    assert schema["properties"]["language"]["enum"] == ["python", "command"]
    timeout = schema["properties"]["timeout_secs"]
    assert (timeout["minimum"], timeout["maximum"], timeout["default"]) == (1, 300, 30)
    assert set(schema["properties"]) == {"language", "code", "stdin", "timeout_secs"}
    json.dumps(schema)


def test_the_description_does_not_promise_what_the_backend_does_not_keep() -> None:
    assert "no network" not in SandboxTool(FakeBackend()).description


async def test_success_has_exactly_the_designed_keys() -> None:
    assert await answer_to(ExecResult(stdout="1\n", duration=0.0123)) == {
        "status": "success",
        "stdout": "1\n",
        "stderr": "",
        "exit_code": 0,
        "duration_ms": 12,
    }


async def test_a_failing_program_is_a_success_of_the_tool() -> None:
    answer = await answer_to(ExecResult(stderr="no", exit_code=42))
    assert (answer["status"], answer["exit_code"], answer["stderr"]) == ("success", 42, "no")


async def test_denials_usage_signal_and_truncation_are_there_when_they_say_something() -> None:
    result = ExecResult(
        exit_code=139,
        signal=11,
        stdout_truncated=True,
        usage=Usage(cpu_time=0.5, peak_memory_bytes=3 << 20),
        denials=[Denial("network", "example.com:443", "network_rules", "allow_domain('example.com')")],
    )
    answer = await answer_to(result)
    assert answer["truncated"] is True
    assert answer["signal"] == 11
    assert answer["usage"] == {"cpu_ms": 500, "peak_memory_mb": 3.0}
    assert answer["denials"][0]["what"] == "example.com:443"


async def test_a_timeout_keeps_the_partial_output() -> None:
    answer = await answer_to(FakeTimeout(stdout="so far", stderr="warn"), GOOD | {"timeout_secs": 2})
    assert answer["status"] == "timeout"
    assert answer["stdout"] == "so far"
    assert answer["stderr"] == "warn\nexecution timed out after 2 s"
    assert answer["duration_ms"] == 2000


async def test_a_timeout_without_a_result() -> None:
    answer = await answer_to(ExecutionTimeout(3))
    assert (answer["status"], answer["stdout"], answer["duration_ms"]) == ("timeout", "", 3000)


async def test_memory_names_the_limit() -> None:
    answer = await answer_to(FakeMemoryExceeded(stdout="x"), memory_limit_mb=64)
    assert answer["status"] == "memory_exceeded"
    assert "64 MB" in answer["stderr"]
    assert answer["stdout"] == "x"
    assert (await answer_to(MemoryExceeded(64)))["status"] == "memory_exceeded"


async def test_fuel_is_an_error_with_its_reason() -> None:
    answer = await answer_to(FuelExhausted(10, ExecResult(stdout="x")))
    assert (answer["status"], answer["stdout"]) == ("error", "x")
    assert "fuel" in answer["stderr"]


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize(
    "timeout",
    [
        0,
        -1,
        301,
        1e308,
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        "5",
        [],
        {},
        10**400,
        pytest.param(10**5000, id="5000 digits"),
        0.5,
    ],
)
async def test_bad_timeouts_are_data_that_name_the_field(timeout: object) -> None:
    backend = FakeBackend()
    answer = await SandboxTool(backend).execute(GOOD | {"timeout_secs": timeout})
    assert answer["status"] == "error"
    assert "timeout_secs" in answer["stderr"]
    assert backend.requests == []


@pytest.mark.parametrize(("timeout", "expected"), [(1, 1.0), (300, 300.0), (2.5, 2.5), (None, 30.0)])
async def test_good_timeouts(timeout: float | None, expected: float) -> None:
    backend = FakeBackend()
    assert (await SandboxTool(backend).execute(GOOD | {"timeout_secs": timeout}))["status"] == "success"
    assert backend.requests[0].timeout == expected


@pytest.mark.attack("PT-02")
@pytest.mark.attack("PT-03")
@pytest.mark.attack("PT-05")
@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({}, "language"),
        ({"language": "python"}, "code"),
        ({"code": "x"}, "language"),
        ({"language": None, "code": "x"}, "language"),
        ({"language": 42, "code": "x"}, "language"),
        ({"language": "cobol", "code": "x"}, "language"),
        ({"language": "../../bin/sh", "code": "x"}, "language"),
        ({"language": ["python"], "code": "x"}, "language"),
        ({"language": "python", "code": ""}, "code"),
        ({"language": "python", "code": 5}, "code"),
        ({"language": "python", "code": {"x": 1}}, "code"),
        ({"language": "python", "code": b"x"}, "code"),
        ({"language": "python", "code": "a\0b"}, "code"),
        ({"language": "python", "code": "\ud800"}, "code"),
        ({"language": "python", "code": "x" * (9 << 20)}, "code"),
        ({"language": "python", "code": "x", "stdin": 5}, "stdin"),
        ({"language": "python", "code": "x", "stdin": b"x"}, "stdin"),
        ([], "arguments"),
        (None, "arguments"),
        ("python", "arguments"),
        (5, "arguments"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.claim("WC-PT-3")
async def test_malformed_arguments_are_data_that_name_the_field(args: Any, field: str) -> None:
    backend = FakeBackend()
    answer = await SandboxTool(backend).execute(args)
    assert answer["status"] == "error"
    assert field in answer["stderr"]
    assert backend.requests == []


@pytest.mark.attack("FS-03")
@pytest.mark.claim("WC-PT-2")
async def test_unknown_arguments_reach_nothing_and_are_named() -> None:
    backend = FakeBackend()
    wide = {
        "memory_limit_mb": 1 << 20,
        "env": {"A": "1"},
        "policy": {"allowNetwork": True},
        "cwd": "/",
        "limits": {"processes": 10**6},
        "timeout": 86400,
    }
    answer = await SandboxTool(backend, memory_limit_mb=64).execute(GOOD | wide)
    assert answer["status"] == "success"
    assert answer["ignored_arguments"] == list(wide)
    asked = backend.requests[0]
    assert (asked.timeout, asked.memory_limit_mb, dict(asked.env), asked.limits) == (30.0, 64, {}, None)


async def test_many_and_huge_unknown_arguments_stay_short() -> None:
    answer = await answer_to("", GOOD | {f"{n}{'x' * 5000}": n for n in range(500)})
    assert len(answer["ignored_arguments"]) == 10
    assert len(json.dumps(answer)) < 2000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
arguments = json_values | st.dictionaries(
    st.sampled_from(["language", "code", "stdin", "timeout_secs", "x"]), json_values | st.just("python"), max_size=5
)


@given(arguments)
@pytest.mark.claim("WC-PT-3")
def test_anything_gets_an_answer_that_is_json(args: Any) -> None:
    answer = asyncio.run(SandboxTool(FakeBackend()).execute(args))
    assert answer["status"] in {"success", "error"}
    assert isinstance(answer["stderr"], str)
    json.dumps(answer).encode()


async def test_long_text_keeps_head_and_tail() -> None:
    text = "HEAD" + "x" * 100_000 + "TAIL"
    answer = await answer_to(ExecResult(stdout=text, stderr=text), max_text=1000)
    for stream in ("stdout", "stderr"):
        assert answer[stream].startswith("HEAD")
        assert answer[stream].endswith("TAIL")
        assert "99008 characters left out" in answer[stream]
        assert len(answer[stream]) < 1100
    assert answer["truncated"] is True


async def test_text_at_the_limit_is_whole() -> None:
    answer = await answer_to(ExecResult(stdout="x" * 1000), max_text=1000)
    assert answer["stdout"] == "x" * 1000
    assert "truncated" not in answer


@pytest.mark.attack("PT-01")
async def test_lone_surrogates_do_not_break_json() -> None:
    answer = await answer_to(ExecResult(stdout="a\udc80b", stdout_bytes=b"a\x80b"))
    json.dumps(answer, ensure_ascii=False).encode()


@pytest.mark.attack("LK-11")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("open('/home/alice/.secret') failed; token=hunter2 at 10.0.0.7:5432"),
        OSError(2, "No such file", "/home/alice/.secret"),
        KeyError("hunter2"),
        ExceptionGroup("hunter2", [ValueError("/home/alice")]),
        ExecutionFailed("could not start /home/alice/bin/python (cwd ~alice/x) from 10.0.0.7"),
        BackendUnavailable("no node", hint="install it in /home/alice/.local"),
        EnforcerUnavailable("native", "cannot read '/home/alice/.secret': fetched https://alice:hunter2@host/x"),
        InvalidRequest("C:\\Users\\alice\\x is odd", field="code"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.claim("WC-LK-5")
async def test_errors_tell_nothing_about_the_host(error: BaseException) -> None:
    answer = await answer_to(error)
    assert answer["status"] == "error"
    shown = json.dumps(answer)
    for secret in ("alice", "hunter2", "10.0.0.7", "Traceback", ".py"):
        assert secret not in shown


async def test_errors_keep_what_a_model_can_act_on() -> None:
    answer = await answer_to(BackendUnavailable("rustc is not installed", hint="pip install 'warmcell[js]'"))
    assert "rustc is not installed" in answer["stderr"]
    assert "warmcell[js]" in answer["stderr"]


async def test_a_backend_that_returns_rubbish_is_an_error() -> None:
    class Rubbish(FakeBackend):
        async def execute(self, request: Any) -> Any:
            return {"not": "a result"}

    assert (await SandboxTool(Rubbish()).execute(GOOD))["status"] == "error"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)])
async def test_cancellation_and_exits_pass_through(error: BaseException) -> None:
    task = SandboxTool(FakeBackend([error])).execute(GOOD)
    with pytest.raises(type(error)):
        await task


@pytest.mark.attack("PT-09")
async def test_a_cancelled_call_is_cancelled() -> None:
    from warmcell.backends.fake import FakeDelay

    task = asyncio.create_task(SandboxTool(FakeBackend([FakeDelay(25)])).execute(GOOD))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("max_text", [0, 99, True, "5", None])
def test_options_are_checked(max_text: Any) -> None:
    with pytest.raises(InvalidRequest):
        SandboxTool(FakeBackend(), max_text=max_text)


# --- what it offers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [None, "process", 5, object(), FakeBackend, {}])
def test_what_is_no_backend_is_refused_at_once(backend: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not a backend") as caught:
        SandboxTool(backend)
    assert caught.value.field == "backend" and "ProcessBackend()" in (caught.value.hint or "")


def capabilities(
    languages: tuple[str, ...] = ("python",), *, isolated: bool = True, network: tuple[str, ...] = ()
) -> Any:
    return BackendCapabilities(languages, "fake", EnforcedLimits(network_isolation=isolated), network)


@pytest.mark.parametrize(
    ("capabilities", "says"),
    [
        (capabilities(), "with no network access"),
        (capabilities(network=("example.com", "x.org:8443")), "with network access to example.com, x.org:8443 only"),
        (capabilities(isolated=False), "with the host's network"),
        (capabilities(network=tuple(f"d{n}.org" for n in range(25))), "d19.org and 5 more only"),
    ],
)
def test_the_network_is_told_as_it_is(capabilities: BackendCapabilities, says: str) -> None:
    assert says in SandboxTool(FakeBackend(capabilities=capabilities)).description


def test_only_a_shell_is_explained_where_there_is_one() -> None:
    assert "shell script" not in SandboxTool(FakeBackend(languages=["python"])).description
    assert "shell script" in SandboxTool(FakeBackend(languages=["command"])).description


@pytest.mark.parametrize(("name", "asked"), [("py", "python"), ("PYTHON", "python"), ("Bash", "command")])
async def test_a_model_may_use_any_name_of_a_language(name: str, asked: str) -> None:
    backend = FakeBackend()
    assert (await SandboxTool(backend).execute({"language": name, "code": "x"}))["status"] == "success"
    assert backend.requests[0].language == asked


async def test_a_language_that_is_not_offered_is_refused_with_what_is() -> None:
    answer = await SandboxTool(FakeBackend(languages=["python", "command"])).execute({"language": "rs", "code": "x"})
    assert (answer["status"], answer["fault"]) == ("error", "caller")
    assert "rust cannot be run here" in answer["stderr"] and "one of python, command" in answer["stderr"]


async def test_a_backend_may_have_languages_of_its_own() -> None:
    backend = FakeBackend(capabilities=capabilities(("intercal",)))
    tool = SandboxTool(backend)
    assert tool.parameters_schema()["properties"]["language"]["enum"] == ["intercal"]
    assert check_language("language", "INTERCAL", ["intercal"]) == "intercal"


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (FakeTimeout(), "guest"),
        (FakeMemoryExceeded(), "guest"),
        (FuelExhausted(5), "guest"),
        (BackendUnavailable("gone"), "host"),
        (RuntimeError("a bug"), "host"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_every_failure_says_whose_it_is(reply: Answer, fault: str) -> None:
    assert (await answer_to(reply))["fault"] == fault


@pytest.mark.attack("S2-17")
@pytest.mark.attack("S2-16")
@pytest.mark.claim("WC-LK-5")
async def test_nothing_of_the_host_and_no_forged_line_reaches_the_model() -> None:
    root = "/tmp/wcuser/warmcell-ab_9zk2d"
    result = ExecResult(
        stdout=f"{root}/work",
        stderr=f'File "{root}/code/main.py"',
        denials=[Denial("path", f"{root}/code/x\nhint: y", "allowedPaths", f"allow_read('{root}/code/x')")],
    )
    answer = await answer_to(result)
    assert (answer["stdout"], answer["stderr"]) == ("/work", 'File "/code/main.py"')
    assert answer["denials"][0]["what"] == "/code/x\\nhint: y"
    refused = await answer_to(PolicyViolation("'/tmp/my project/x' cannot be allowed"))
    assert refused["stderr"] == "'<path>' cannot be allowed"
