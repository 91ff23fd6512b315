"""The APIs of E2B, SandboxFusion and Piston under attack: errors of the caller are never reported as ours."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.conftest import Server
from tests.serve.requests import FUSION, PISTON, Box, cell, post


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Box]:
    made = Box(server.client)
    yield made
    made.kill()


@pytest.mark.attack("PT-01")
def test_output_that_is_no_text(server: Server, box: Box) -> None:
    code = "import os; os.write(1, b'\\xff\\x00\\xed\\xa0\\x80' * 1000)"
    begun = box.stream("process.Process/Start", process={"cmd": "python3", "args": ["-c", code]})
    texts = [event["event"]["data"]["stdout"] for event in begun if "data" in event.get("event", {})]
    assert b"".join(map(b64decode, texts)) == b"\xff\x00\xed\xa0\x80" * 1000
    told = [json.loads(line) for line in cell(box, code=code).text.splitlines() if "keepalive" not in line]
    assert told[-1] == {"type": "end_of_execution"} and "\0" in told[0]["text"]
    assert post(server, "/run_code", FUSION | {"code": code}).json()["status"] == "Success"
    ran = post(server, "/api/v2/execute", PISTON | {"files": [{"content": code}]}).json()["run"]
    assert ran["code"] == 0 and len(ran["stdout"]) >= 2000
    box.run("touch $'\\xff'")
    listed = box.call("filesystem.Filesystem/ListDir", path=".")
    assert listed.status_code == 200 and box.run("rm -f *")[0] == 0


@pytest.mark.attack("PT-02")
def test_nul_bytes_are_refused(server: Server, box: Box) -> None:
    for process in ({"cmd": "a\0b"}, {"cmd": "true", "args": ["\0"]}, {"cmd": "true", "envs": {"A": "\0"}}):
        told = box.stream("process.Process/Start", process=process)
        assert told[-1]["error"]["code"] == "invalid_argument", told
    assert box.stream("process.Process/Start", process={"cmd": "true", "cwd": "/\0"})[-1]["error"]["code"] != "internal"
    assert box.call("filesystem.Filesystem/Stat", path="a\0b").status_code == 400
    assert cell(box, code="1", env_vars={"A": "\0"}).status_code == 400
    assert box.client.get("/files", params={"path": "a\0b"}, headers=box.headers).status_code == 400
    assert post(server, "/v2/sandboxes", {"templateID": "base", "envVars": {"A": "\0"}}).status_code == 400
    assert post(server, "/run_code", FUSION | {"stdin": "\0"}).status_code == 200  # input may be anything
    assert post(server, "/run_code", FUSION | {"files": {"a\0b": ""}}).status_code == 422
    assert post(server, "/api/v2/execute", PISTON | {"args": ["\0"]}).status_code == 400


@pytest.mark.attack("PT-03")
def test_code_of_odd_sizes(server: Server, box: Box) -> None:
    for code in ("", " \n\t", "x = 1\n" * 20_000, "#" * 1_000_000):
        assert post(server, "/run_code", FUSION | {"code": code}).json()["status"] in ("Success", "Failed")
        assert post(server, "/api/v2/execute", PISTON | {"files": [{"content": code}]}).status_code in (200, 400)
    for code in ("", " \n\t", "#" * 1_000_000):
        assert cell(box, code=code).status_code == 200
    long = box.stream("process.Process/Start", process={"cmd": "/bin/echo", "args": ["x" * 300_000]})
    assert long[-1].get("error", {}).get("code") != "internal", long[-1]
    assert box.run("echo still here") == (0, "still here\n", "")


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 1e308, "x", [], True, None], ids=str)
def test_times_that_are_none(server: Server, wrong: Any) -> None:
    """Refused, or the longest that there is; never without end."""
    fusion = post(server, "/run_code", FUSION | {"run_timeout": wrong})
    assert fusion.status_code in (400, 422) or (wrong is True and fusion.status_code == 200), fusion.text
    piston = post(server, "/api/v2/execute", PISTON | {"run_timeout": wrong})
    assert piston.status_code == 400 or wrong in (None, -1, True), piston.text
    made = post(server, "/v2/sandboxes", {"templateID": "base", "timeout": wrong})
    assert made.status_code == (201 if wrong in (0, True) else 400), made.text
    if made.status_code == 201:
        assert server.client.delete(f"/sandboxes/{made.json()['sandboxID']}").status_code in (204, 404)  # a second


@pytest.mark.attack("PT-05")
@pytest.mark.parametrize("wrong", ["klingon", "../../bin/sh", "", 42, None, ["python"]], ids=str)
def test_languages_that_are_none(server: Server, box: Box, wrong: Any) -> None:
    assert post(server, "/run_code", FUSION | {"language": wrong}).status_code == 422
    assert post(server, "/api/v2/execute", PISTON | {"language": wrong}).status_code == 400
    if wrong:  # else it is Python
        assert cell(box, code="1", language=wrong).status_code in (400, 422)
        assert post(server, "/contexts", {"language": wrong}, box.headers).status_code in (400, 422)


@pytest.mark.attack("PT-06")
def test_every_end_has_its_own_name(server: Server, box: Box) -> None:
    def end_of(code: str) -> dict[str, Any]:
        told = box.stream("process.Process/Start", process={"cmd": "python3", "args": ["-c", code]})
        end: dict[str, Any] = told[-2]["event"]["end"]
        return end

    assert end_of("raise SystemExit(0)") == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    assert end_of("raise SystemExit(-1)")["exitCode"] == 255 and end_of("raise SystemExit(256)")["exitCode"] == 0
    for number, name in ((15, "terminated"), (9, "killed"), (11, "segmentation fault")):
        end = end_of(f"import os; os.kill(os.getpid(), {number})")
        assert (end["exited"], end["status"]) == (False, f"signal: {name}")
        ran = post(server, "/run_code", FUSION | {"code": f"import os; os.kill(os.getpid(), {number})"}).json()
        assert (ran["status"], ran["run_result"]["status"]) == ("Failed", "Finished"), ran
    late = post(server, "/run_code", FUSION | {"code": "while True: pass", "run_timeout": 1}).json()
    assert late["run_result"]["status"] == "TimeLimitExceeded"


@pytest.mark.attack("PT-13")
def test_cells_come_one_after_the_other_and_a_context_ends_once(server: Server, box: Box) -> None:
    context = post(server, "/contexts", {}, box.headers).json()["id"]
    said: list[str] = []

    def run() -> None:
        said.append(cell(box, code="import time; n = 0; time.sleep(.3); n += 1; print(n)", context_id=context).text)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ['"1\\n"' in text for text in said] == [True] * 3, said
    ending = threading.Thread(target=lambda: said.append(cell(box, code="while True: pass", context_id=context).text))
    ending.start()
    assert box.client.delete(f"/contexts/{context}", headers=box.headers).status_code == 204
    ending.join(60)
    assert not ending.is_alive()
    assert box.client.delete(f"/contexts/{context}", headers=box.headers).status_code == 404
    assert cell(box, code="1", context_id=context).status_code == 404


def test_file_times_of_any_year(server: Server, box: Box) -> None:
    """On a file system in memory a file may be of the year 292,277,026,596. RFC 3339 ends with 9999."""
    times = (2**62, 253_402_300_800, -62_135_596_801, -(2**62))
    code = f"import os\nos.mkdir('/dev/shm/t')\nfor n, at in enumerate({times}):\n"
    code += " open(f'/dev/shm/t/{n}', 'w').close(); os.utime(f'/dev/shm/t/{n}', (at, at))"
    assert box.run(f'python3 -c "{code}"') == (0, "", "")
    listed = box.call("filesystem.Filesystem/ListDir", path="/dev/shm/t")
    assert listed.status_code == 200, listed.text
    years = [item["modifiedTime"][:5] for item in listed.json()["entries"]]
    assert sorted(years) == ["0001-", "0001-", "9999-", "9999-"]
    found = box.call("filesystem.Filesystem/Stat", path="/dev/shm/t/0")
    assert found.json()["entry"]["modifiedTime"] == "9999-12-31T23:59:59.000000000Z"
