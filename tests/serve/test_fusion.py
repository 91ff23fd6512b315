"""SandboxFusion's `/run_code`, by what its clients do with the answer."""

from __future__ import annotations

import threading
import time
from base64 import b64decode, b64encode
from typing import Any

import httpx
import pytest
from tests.serve.conftest import Server


def run_code(server: Server, **body: Any) -> dict[str, Any]:
    answer = server.client.post("/run_code", json={"language": "python", **body})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    for step in (result["compile_result"], result["run_result"]):
        assert step is None or (isinstance(step["stdout"], str) and isinstance(step["stderr"], str))
    return result


def test_a_success(server: Server) -> None:
    found = run_code(server, code="print(input())", stdin="hello", files={}, fetch_files=[])
    assert (found["status"], found["compile_result"]) == ("Success", None)
    run = found["run_result"]
    assert (run["status"], run["return_code"], run["stdout"]) == ("Finished", 0, "hello\n")


def test_a_program_that_fails(server: Server) -> None:
    found = run_code(server, code="raise SystemExit(3)")
    assert (found["status"], found["run_result"]["status"], found["run_result"]["return_code"]) == (
        "Failed",
        "Finished",
        3,
    )


def test_a_program_that_overstays(server: Server) -> None:
    found = run_code(server, code="print('so far', flush=True)\nwhile True: pass", run_timeout=1)
    assert (found["status"], found["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert found["run_result"]["stdout"] == "so far\n"


def test_a_program_that_takes_too_much_memory(server: Server) -> None:
    found = run_code(server, code="x = bytearray(900 << 20)", memory_limit_MB=64, run_timeout=60)
    assert (found["status"], found["run_result"]["status"]) == ("Failed", "Finished")
    assert found["run_result"]["return_code"] != 0 and "64 MB" in found["run_result"]["stderr"]


@pytest.mark.parametrize("code", ["print('x' * (4 << 20))", "while True: print('x' * 1000)"], ids=["4 MB", "endless"])
def test_output_that_is_cut_is_not_a_success(server: Server, code: str) -> None:
    found = run_code(server, code=code, run_timeout=30)
    assert (found["status"], found["run_result"]["status"]) == ("Failed", "Error")
    assert "output limit" in found["message"] and found["run_result"]["execution_time"] < 15


@pytest.mark.parametrize("code", ["", " \n", "print('a\0b')"])
def test_what_cannot_be_a_program_is_its_own_failure(server: Server, code: str) -> None:
    assert run_code(server, code=code)["status"] == "Failed"


def test_files_come_and_go(server: Server) -> None:
    files = {"dir/a.txt": b64encode(b"\xff\0").decode(), "none": None}
    code = "open('b', 'wb').write(open('dir/a.txt', 'rb').read() * 2)"
    assert b64decode(run_code(server, code=code, files=files, fetch_files=["b"])["files"]["b"]) == b"\xff\0\xff\0"


@pytest.mark.needs("g++")
def test_compiling_is_a_step_of_its_own(server: Server) -> None:
    good = run_code(
        server, language="cpp", code='#include <cstdio>\nint main() { puts("hi"); return 2; }', compile_timeout=60
    )
    assert (good["status"], good["compile_result"]["return_code"], good["run_result"]["return_code"]) == (
        "Failed",
        0,
        2,
    )
    assert good["run_result"]["stdout"] == "hi\n"
    bad = run_code(server, language="cpp", code="int main() { return x; }", compile_timeout=60)
    assert (bad["status"], bad["run_result"]) == ("Failed", None)
    assert bad["compile_result"]["return_code"] != 0 and "x" in bad["compile_result"]["stderr"]
    late = run_code(
        server, language="cpp", code='#include <regex>\nint main() { std::regex r("a"); }', compile_timeout=0.01
    )
    assert (late["compile_result"]["status"], late["run_result"]) == ("TimeLimitExceeded", None)


def test_a_notebook(server: Server) -> None:
    cells = ["a = 1", "print(a); a + 1", "1/0", "import sys; sys.stderr.write('e'); open('out', 'w').write('o')"]
    body = {"cells": cells, "files": {"in": "aQ=="}, "fetch_files": ["out", "none"]}
    found = server.client.post("/run_jupyter", json=body).json()
    assert (found["status"], found["driver"]["status"]) == ("Success", "Finished")
    assert [cell["stdout"] for cell in found["cells"]] == ["", "1\n", "", ""]
    assert found["cells"][1]["display"][0]["text/plain"] == "2"
    assert found["cells"][2]["error"][0]["ename"] == "ZeroDivisionError"
    assert found["cells"][3]["stderr"] == "e" and found["files"] == {"out": "bw=="}


def test_a_notebook_that_overstays(server: Server) -> None:
    body = {"cells": ["print(1)", "import time; time.sleep(60)", "print(2)"], "total_timeout": 1}
    found = server.client.post("/run_jupyter", json=body).json()
    assert (found["status"], found["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert len(found["cells"]) <= 1


@pytest.mark.attack("PT-15")
@pytest.mark.parametrize(
    "body",
    [
        {"language": "klingon"},
        {"language": 7},
        {"code": None},
        {"run_timeout": -1},
        {"files": {"../x": "AA=="}},
        {"files": {"x": "!"}},
    ],
    ids=str,
)
def test_the_callers_mistakes_are_422(server: Server, body: dict[str, Any]) -> None:
    answer = server.client.post("/run_code", json={"language": "python", "code": "1", **body})
    assert answer.status_code == 422, answer.text


@pytest.mark.attack("PT-09")
def test_abandoned_requests_hold_no_places(server: Server) -> None:
    """More clients than there are places ask, give up, and are followed by one that is served at once."""
    forever = {"language": "python", "code": "import time; time.sleep(200)", "run_timeout": 200}

    def ask() -> None:
        with (
            httpx.Client(timeout=httpx.Timeout(30, read=1), verify=False) as client,
            pytest.raises(httpx.ReadTimeout),
        ):
            client.post(f"{server.url}/run_code", json=forever)

    clients = [threading.Thread(target=ask) for _ in range(40)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    began = time.monotonic()
    while (
        answer := server.client.post("/run_code", json={"language": "python", "code": "print(1)"})
    ).status_code == 504:
        assert time.monotonic() - began < 60
    assert answer.json()["run_result"]["stdout"] == "1\n"
