"""Access: loopback, tokens, scopes, other web pages; and shutdown."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.conftest import ROOT, Server, make_token

from warmcell import Client
from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.settings import Settings, check_exposure
from warmcell.interfaces.serve.tokens import add_token

RUN = {"language": "python", "code": "print(1)", "timeout": 30}
Start = Callable[..., Any]


def serve_fails(*options: str, **variables: str) -> str:
    command = [sys.executable, "-m", "warmcell", "serve", "--port", "0", *options]
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", **variables}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert ended.returncode == 2 and ended.stdout == "", ended.stderr
    return ended.stderr


@pytest.mark.parametrize(
    ("token", "said"), [(None, "warmcell token new"), ("secret", "guessed")], ids=["no token", "a short one"]
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_nobody_else_can_reach_it_without_a_good_token(host: str, token: str | None, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_exposure(Settings(host=host, token=token))
    assert said in str(refused.value)


def test_the_command_says_so(server: Server) -> None:
    assert "warmcell token new" in serve_fails("--host", "0.0.0.0")


def test_a_policy_with_a_mistake_is_refused(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"allowNetwrok": true}')
    assert "allowNetwrok" in serve_fails("--policy", str(file))


def test_a_temporary_directory_too_long_for_sockets_is_refused_before_the_url_is_printed(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100)
    directory.mkdir()
    assert "set TMPDIR to a shorter one" in serve_fails("--workers", "2", TMPDIR=str(directory))
    assert not list(directory.iterdir())


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:80"},
        {"host": "localhost.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/run", "/healthz", "/nothing"])
def test_other_peoples_pages_are_not_answered(server: Server, headers: dict[str, str], path: str) -> None:
    assert server.client.get(path, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "host",
    [f"127.0.0.{'1' * 5000}", "127.0.0.256", "127.0.0.0.1", "127.0.0.\u00b2"],
    ids=["digits", "large", "five", "superscript"],
)
def test_a_host_that_only_looks_like_a_loopback_address_is_refused(server: Server, host: str) -> None:
    """Python converts at most 4,300 digits to a number: the answer was 500."""
    assert server.client.get("/healthz", headers={b"host": host.encode("latin-1")}).status_code == 403


def test_tokens_scopes_and_reload(start_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    one = make_token(file, "one")
    looker = make_token(file, "looker", "--scope", "doctor")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert one not in file.read_text()
    with start_server("--tokens", str(file)) as server:
        post = partial(server.client.post, "/v1/run", json=RUN)
        assert post().status_code == 401
        assert post(headers={"authorization": "Bearer wc_wrong"}).status_code == 401
        assert post(headers={"authorization": f"Bearer {looker}"}).status_code == 403
        for kind in ({"authorization": f"Bearer {one}"}, {"x-api-key": one}):
            assert post(headers=kind).json()["stdout"] == "1\n"
        # E2B's SDKs send E2B_ACCESS_TOKEN, if it is set, beside the key.
        assert post(headers={"authorization": "Bearer sk_e2b_other", "x-api-key": one}).status_code == 200
        assert post(headers={"authorization": f"Bearer {one}", "x-api-key": "wrong"}).status_code == 401
        assert post(auth=("", one)).status_code == 200  # as in http://:TOKEN@host/
        assert server.client.get("/healthz").status_code == 200
        revoke = [sys.executable, "-m", "warmcell", "token", "revoke", "one", "--tokens", str(file)]
        subprocess.run(revoke, check=True, env={"PYTHONPATH": str(ROOT / "src")})
        server.reload()
        assert post(headers={"x-api-key": one}).status_code == 401
        file.write_text("{")
        server.reload()  # says that it is not JSON, and goes on as before
        assert post(headers={"x-api-key": looker}).status_code == 403


def test_a_place_where_no_token_can_be_kept_is_named() -> None:
    """As in a container whose root is read-only; here somewhere that root cannot write either."""
    with pytest.raises(InvalidRequest, match=r"cannot write '/proc/here/tokens.json'.*--tokens FILE"):
        add_token("/proc/here/tokens.json", "alice")


def test_the_policy_file_and_the_longest_time_are_the_ceiling(start_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"allowProcessSpawn": True, "limits": {"outputBytes": 10}}))
    ask = RUN | {"code": "print('#' * 100)", "timeout": 20, "limits": {"output_bytes": 1000}}
    with start_server("--policy", str(file), "--max-timeout", "20") as server:
        cut = server.client.post("/v1/run", json=ask).json()
        assert (cut["stdout"].count("#"), cut["stdout_truncated"]) == (10, True)
        file.write_text(json.dumps({"allowProcessSpawn": True, "limits": {"outputBytes": 20}}))
        server.reload()
        assert server.client.post("/v1/run", json=ask).json()["stdout"].count("#") == 20
        assert server.client.post("/v1/run", json=ask | {"timeout": 21}).status_code == 422
        # Without a timeout the server's maximum applies.
        assert server.client.post("/v1/sandboxes", json={}).json()["timeout"] == 20
        assert server.client.post("/v1/sandboxes", json={"timeout": 21}).status_code == 422
        with Client(server.url) as client, client.sandbox() as sandbox:
            assert (sandbox.timeout, sandbox.sh("echo 1").stdout) == (20, "1\n")
        assert server.client.post("/run_jupyter", json={"cells": ["1"]}).json()["status"] == "Success"


def test_a_judged_program_that_sleeps_ends_at_the_longest_time(start_server: Start) -> None:
    """Its limit is on processor time, of which it uses none; the elapsed time behind that limit is bounded too."""
    body = RUN | {"code": "import time; time.sleep(200)", "timeout": 1, "cases": [{}]}
    with start_server("--max-timeout", "1") as server:
        (verdict,) = server.client.post("/v1/judge", json=body).json()["verdicts"]
    assert (verdict["status"], verdict["error"]["details"]["timeout"]) == ("time_limit", 1)


def test_sigterm_lets_runs_end(start_server: Start, tmp_path: Path) -> None:
    """A stream that is under way gets its last event. The run ends after the server has said that it shuts down."""
    shown, policy = tmp_path / "shown", tmp_path / "policy.json"
    shown.mkdir()
    paths = [{"path": str(shown), "mode": "readOnly", "guestPath": "/shown"}]
    policy.write_text(json.dumps({"allowProcessSpawn": True, "allowedPaths": paths}))
    code = "print('begun', flush=True)\nimport os, time\nwhile not os.path.exists('/shown/go'): time.sleep(0.02)"
    with start_server("--policy", str(policy)) as server:
        headers, body = {"accept": "text/event-stream"}, RUN | {"code": f"{code}\nprint('ended')"}
        with server.client.stream("POST", "/v1/run", json=body, headers=headers) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: stdout"
            server.process.send_signal(signal.SIGTERM)
            said = server.process.stderr.readline()
            assert said.startswith("WARNING: SIGTERM: shutting down; 1 runs may finish")
            (shown / "go").touch()
            heard = "\n".join(lines)
        said += server.process.stderr.read()
        server.process.wait(60)
    assert "event: result" in heard and '"stdout": "begun\\nended\\n"' in heard
    assert server.process.returncode == 0 and said.count("\n") == 1, said
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/healthz")


def test_without_the_extra_its_name_is_told() -> None:
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "from warmcell.interfaces.cli import main\n"
        "raise SystemExit(main(['serve', '--port', '0']))"
    )
    environment = {"PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 125 and "warmcell[serve]" in ended.stderr, ended.stderr
