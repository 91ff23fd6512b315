"""CrewAI's E2B tools, unmodified, against a server of ours. Run by scripts/test-clients."""

from __future__ import annotations

import os
from importlib.metadata import version

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"

from crewai_tools.tools.e2b_sandbox_tool import E2BExecTool, E2BFileTool, E2BPythonTool
from e2b import CommandExitException


def once() -> None:
    """Each call in a sandbox of its own."""
    shell = E2BExecTool(envs={"A": "b"})
    found = shell.run(command="echo $A $C; echo err >&2; touch left; pwd", envs={"C": "d"})
    assert (found["exit_code"], found["stdout"], found["stderr"]) == (0, "b d\n/home/user\n", "err\n"), found
    assert shell.run(command="ls", cwd="/home/user")["stdout"] == ""
    try:
        shell.run(command="exit 3")
        raise AssertionError("it is reported as a failure")
    except CommandExitException as error:
        assert error.exit_code == 3


def cells() -> None:
    python = E2BPythonTool(persistent=True)
    try:
        assert python.run(code="kept = 6\nprint('said')")["stdout"] == ["said\n"]
        found = python.run(code="[kept * 7]")
        assert (found["text"], found["results"][0]["json"]) == ("[42]", [42]), found
        assert python.run(code="1/0")["error"]["name"] == "ZeroDivisionError"
        assert python.run(code="[1, 2].length", language="javascript")["text"] == "2"
    finally:
        python.close()


def files() -> None:
    """By several tools that share a sandbox."""
    owner = E2BExecTool(persistent=True)
    try:
        owner.run(command="true")
        files = E2BFileTool(sandbox_id=owner._persistent_sandbox.sandbox_id)
        path = "/home/user/dir/data.txt"
        assert files.run(action="write", path=path, content="one\ntwo\n")["bytes"] == 8
        assert owner.run(command=f"sort -r {path}")["stdout"] == "two\none\n"
        assert files.run(action="read", path=path)["content"] == "one\ntwo\n"
        assert files.run(action="read", path=path, binary=True)["content"] == "b25lCnR3bwo="
        assert [entry["name"] for entry in files.run(action="list", path="/home/user/dir")["entries"]] == ["data.txt"]
        assert files.run(action="info", path=path)["size"] == 8
        assert files.run(action="mkdir", path="/home/user/new")["created"]
        files.run(action="delete", path=path)
        assert not files.run(action="exists", path=path)["exists"]
    finally:
        owner.close()


once()
cells()
files()
print(f"crewai-tools {version('crewai-tools')}: ok", flush=True)
os._exit(0)  # the SDK's own threads may abort an interpreter that is taken apart
