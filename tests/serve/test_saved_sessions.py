"""`warmcell serve --state DIR`: variables of sessions are there again after a restart."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.serve.requests import Box, cell, create_sandbox, key_options

Start = Callable[..., Any]


def _values(box: Box, code: str, **more: Any) -> list[str]:
    """The text of the results of a cell; of its error, if it failed."""
    answer = cell(box, code=code, **more)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return [line.get("text") or line["name"] for line in lines if line["type"] in ("result", "error")]


def test_sessions_of_a_stopped_server(start_server: Start, tmp_path: Path) -> None:
    options, state = ("--state", str(tmp_path / "state")), tmp_path / "state/worker-0"
    with start_server(*options) as server:
        at = create_sandbox(server.client, lifetime=600)
        bodies: list[dict[str, Any]] = [{"env": {"WORD": "hi"}}, {}, {}, {"language": "command"}]
        ids = [server.client.post(f"{at}/sessions", json=body).json()["id"] for body in bodies]
        code = "import os\nrows = [1, 2]\nsame = rows\nopen('/tmp/own', 'w').write('two')\ndef twice(n): return 2 * n"
        for identity, line in zip(ids, (code, "x = 1", "squares = (n for n in 'ab')"), strict=False):
            assert server.client.post(f"{at}/sessions/{identity}/run", json={"code": line}).json()["error"] is None
        assert server.stop()[0] == 0
    (record,) = (state / "records").iterdir()
    document = json.loads(record.read_text())
    document["sessions"][1]["image"] = "../../layout.json"
    record.write_text(json.dumps(document))
    with start_server(*options) as server:
        look = "same.append(twice(4)), rows, os.environ['WORD'], open('/tmp/own').read()"
        found = server.client.post(f"{at}/sessions/{ids[0]}/run", json={"code": look}).json()
        assert found["value"] == "(None, [1, 2, 8], 'hi', 'two')" and found["execution_count"] == 2
        assert [session["id"] for session in server.client.get(f"{at}/sessions").json()] == [ids[0]]
        assert not list((state / "sessions").iterdir())  # a crash from here on must not bring back old variables
        reasons = ("is not a name", "the variable 'squares' cannot be copied", "in command cannot be saved")
        for identity, reason in zip(ids[1:], reasons, strict=True):
            missing = server.client.get(f"{at}/sessions/{identity}")
            assert missing.status_code == 404 and reason in missing.text
        said = server.stop()[1]
    assert f"session {ids[3]} (variables of sessions in command" in said
    assert f"session {ids[1]} of sandbox" in said
    assert len(list((state / "sessions").iterdir())) == 1 and (state.parent / "layout.json").exists()


def test_contexts_of_a_paused_sandbox_outlast_a_kill(start_server: Start, tmp_path: Path) -> None:
    has_key = find_spec("cryptography") is not None
    options = ("--state", str(tmp_path / "state"), *key_options(tmp_path, has_key))
    with start_server(*options) as server:
        box = Box(server.client, timeout=600, envVars={"SECRET": "canary"}, metadata={"note": "canary"})
        assert box.run("echo canary > canary; ln -s canary link")[0] == 0
        server.client.post(f"/sandboxes/{box.id}/snapshots", json={}, headers=box.key).raise_for_status()
        assert _values(box, "x = 20; x + 1") == ["21"]
        second = box.client.post("/contexts", json={"cwd": "/home/user/sub"}, headers=box.headers).json()["id"]
        assert _values(box, "y = 'canary'; import os; os.getcwd()", context_id=second) == ["/home/user/sub"]
        assert server.client.post(f"/sandboxes/{box.id}/pause", json={}, headers=box.key).status_code == 204
        server.stop(signal.SIGKILL)
    for path in (tmp_path / "state").rglob("*") if has_key else ():
        assert "canary" not in path.name and (path.is_dir() or b"canary" not in path.read_bytes()), path
    with start_server(*options) as server:
        box.client = server.client
        assert server.client.post(f"/v2/sandboxes/{box.id}/connect", json={"timeout": 600}).status_code == 201
        assert _values(box, "x, open('canary').read()") == ["(20, 'canary\\n')"]
        assert _values(box, "y, os.getcwd()", context_id=second) == ["('canary', '/home/user/sub')"]
        assert len(server.client.get("/contexts", headers=box.headers).json()) == 3  # one for JavaScript
        _values(box, "x = 21")
        images = tmp_path / "state/worker-0/sessions"
        server.client.post(f"/sandboxes/{box.id}/pause", json={}, headers=box.key)
        assert len(list(images.iterdir())) == 2
        server.client.post(f"/v2/sandboxes/{box.id}/connect", json={"timeout": 600})
        assert not list(images.iterdir())  # it runs: after a kill they would not match its files
        assert _values(box, "x") == ["21"]
