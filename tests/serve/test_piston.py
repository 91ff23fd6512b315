"""Piston's two calls."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.conftest import Server

from warmcell import ExecResult
from warmcell.interfaces.serve.build_and_run import Step
from warmcell.interfaces.serve.piston import _step


def execute(server: Server, content: str, **body: Any) -> dict[str, Any]:
    asked = {
        "language": "python",
        "version": "*",
        "files": [{"name": "main.py", "content": content}],
        "run_timeout": 30_000,
    }
    answer = server.client.post("/api/v2/execute", json=asked | body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_runtimes(server: Server) -> None:
    found = {item["language"]: item for item in server.client.get("/api/v2/runtimes").json()}
    assert "py" in found["python"]["aliases"]
    assert len(found["python"]["version"].split(".")) == 3


def test_a_run(server: Server) -> None:
    code = "import sys; print(sys.argv[1:], input()); print('e', file=sys.stderr); sys.exit(3)"
    found = execute(server, code, args=["a", "b"], stdin="in")
    assert found["language"] == "python" and "compile" not in found
    run = found["run"]
    assert (run["stdout"], run["stderr"], run["code"], run["signal"]) == ("['a', 'b'] in\n", "e\n", 3, None)
    assert run["output"] == "['a', 'b'] in\ne\n"


def test_a_run_that_overstays(server: Server) -> None:
    run = execute(server, "while True: pass", run_timeout=500)["run"]
    assert (run["code"], run["signal"], run["status"]) == (None, "SIGKILL", "TO")


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (34, "SIGRTMIN"), (40, "SIG40"), (33, "SIG33")])
def test_every_signal_has_a_name(number: int, name: str) -> None:
    """A program that ended itself by a real-time signal was answered 500."""
    ended = _step(Step("ended", ExecResult(exit_code=128 + number, signal=number)))
    assert (ended["signal"], ended["code"], ended["status"]) == (name, None, "SG")


def test_other_files_lie_beside_it(server: Server) -> None:
    files = [{"content": "print(open('data').read())"}, {"name": "data", "content": "aGk=", "encoding": "base64"}]
    assert execute(server, "", files=files)["run"]["stdout"] == "hi\n"


@pytest.mark.needs("gcc")
def test_compiling_is_a_step_of_its_own(server: Server) -> None:
    found = execute(server, "int main(void) { return x; }", language="c", compile_timeout=60_000)
    assert found["compile"]["code"] != 0 and "x" in found["compile"]["stderr"]


@pytest.mark.attack("PT-15")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": "2.x"}, "unknown"),
        ({"language": "klingon"}, "klingon"),
        ({"files": []}, "files"),
        ({"stdin": 3}, "stdin"),
    ],
)
def test_what_is_wrong_is_a_400_with_a_message(server: Server, change: dict[str, Any], named: str) -> None:
    asked = {"language": "python", "version": "*", "files": [{"content": "1"}]}
    answer = server.client.post("/api/v2/execute", json=asked | change)
    assert answer.status_code == 400 and named in answer.json()["message"]


@pytest.mark.parametrize(
    ("selector", "is_met"),
    [
        ("*", True),
        ("3", True),
        ("3.x", True),
        ("3.11.2", True),
        ("3.11.3", False),
        ("^3.9", True),
        ("^4.0.0", False),
        ("~3.11.0", True),
        (">=3.12", False),
        ("", False),
        ("latest", False),
    ],
)
def test_versions_are_chosen_as_npm_writes_them(server: Server, selector: str, is_met: bool) -> None:
    from warmcell.interfaces.serve.piston import fits

    assert fits("3.11.2", selector) is is_met
