"""How the failures of a sandbox's file service, and a busy host, reach E2B's clients."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from warmcell.core.errors import BackendBusy, SandboxDestroyed
from warmcell.interfaces.serve.e2b import envd
from warmcell.interfaces.serve.e2b.connect import RpcError, as_rpc_error
from warmcell.interfaces.serve.e2b.control import Samples, metrics_of
from warmcell.interfaces.serve.e2b.envd import envd_refusal
from warmcell.interfaces.serve.e2b.guest_files import FileError
from warmcell.interfaces.serve.e2b.interpreter import plain_refusal
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.service import LOCAL_TENANT


@pytest.mark.parametrize(
    ("errno", "status"),
    [("ENOENT", 404), ("EACCES", 403), ("ENOSPC", 507), ("EINVAL", 400), ("ESTALE", 503), ("EBUSY", 503)],
)
def test_a_transfer_that_the_service_lost_can_be_tried_again(errno: str, status: int) -> None:
    assert envd_refusal(FileError(errno, "what happened")).status_code == status


@pytest.mark.parametrize(("code", "status"), [("deadline_exceeded", 504), ("unavailable", 503), ("internal", 500)])
def test_a_context_whose_directory_cannot_be_made_has_the_reason(code: str, status: int) -> None:
    refused = plain_refusal(RpcError(code, "the file service did not answer"))
    assert (refused.status_code, bytes(refused.body)) == (status, b"the file service did not answer")


@pytest.mark.parametrize(
    "answer",
    [
        "{}",
        '{"seconds": NaN, "memory": 1, "disk": 1}',
        '{"seconds": 1, "memory": Infinity, "disk": 1}',
        '{"seconds": 1, "memory": 1, "disk": "1"}',
        '{"seconds": 1, "memory": 1, "disk": -1}',
        None,
    ],
)
async def test_metrics_that_the_guest_forges_are_no_internal_error(answer: str | None) -> None:
    async def ask(op: str) -> Any:
        if answer is None:
            raise RpcError("internal", "the file service exited")
        return json.loads(answer)

    entry = SimpleNamespace(created=0.0, state=SimpleNamespace(get=lambda kind, make: Samples(0.0)))
    box: Any = SimpleNamespace(entry=entry, is_paused=False, files=SimpleNamespace(ask=ask))
    with pytest.raises(HttpError) as refused:
        await metrics_of(box, None, None)
    assert (refused.value.status, refused.value.fault) == (503, "guest")


def test_a_busy_host_is_not_a_lost_sandbox() -> None:
    """A start that got no slot was "unavailable", from which the SDKs conclude that the sandbox has ended."""
    assert as_rpc_error(BackendBusy(30)).code == "resource_exhausted"
    assert as_rpc_error(SandboxDestroyed()).code == "unavailable"


async def read_head(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The answer to HEAD /files in a sandbox whose file service can do nothing but `stat`."""

    async def ask(op: str, *, path: str) -> dict[str, Any]:
        assert (op, path) == ("stat", "big")
        return {"entry": entry}

    async def find(request: Request, operation: str) -> tuple[Any, str]:
        return SimpleNamespace(files=SimpleNamespace(ask=ask)), "big"

    async def receive() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(envd, "_file_box", find)
    scope = {"type": "http", "method": "HEAD", "headers": [], "query_string": b""}
    return await envd.read(Request(scope, receive), LOCAL_TENANT)


async def test_head_does_not_read_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It read all of it, whatever its size, to send nothing."""
    answer = await read_head({"type": "FILE_TYPE_FILE", "size": 1 << 40}, monkeypatch)
    assert (answer.status_code, answer.headers["content-length"], answer.body) == (200, str(1 << 40), b"")


@pytest.mark.parametrize(
    ("kind", "size"), [("DIRECTORY", 1), ("FILE", -1), ("FILE", True), ("FILE", "1"), ("FILE", 1.5), ("FILE", 1 << 70)]
)
async def test_head_of_what_is_not_a_file_is_refused(kind: str, size: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RpcError, match="not a regular file"):
        await read_head({"type": f"FILE_TYPE_{kind}", "size": size}, monkeypatch)
