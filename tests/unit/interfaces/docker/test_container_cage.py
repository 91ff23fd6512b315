"""Requests in a container's cage that cannot be started, and clients that hang up during one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import cancel_at_every_await

from warmcell.core.errors import ExecutionFailed, InvalidRequest, SandboxDestroyed, SandboxError, SessionEnded
from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.docker import container_cage
from warmcell.interfaces.docker.container_cage import ContainerCage
from warmcell.interfaces.docker.messages import DockerError, refusal_of


class LiveCage:
    is_alive = True

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def end_soon(self, reason: str) -> None:
        self.reasons.append(reason)


class Helper:
    """Answers as the helper in the cage does."""

    info = SimpleNamespace(exit_code=0)

    def __init__(self) -> None:
        self.is_killed = False

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)

    async def close_stdin(self) -> None: ...

    async def output(self) -> AsyncIterator[OutputEvent]:
        await asyncio.sleep(0)
        yield OutputEvent("stdout", b"{}\n")

    def kill_soon(self) -> None:
        self.is_killed = True


@pytest.fixture
def cage() -> ContainerCage:
    nothing: Any = None
    made, live = ContainerCage(nothing, {}), LiveCage()
    made._cage = live  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    "failure",
    [
        ExecutionFailed("the live cage has no room for another process"),
        InvalidRequest("the process no longer reads its stdin"),
        SessionEnded("its agent did not answer"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_a_cage_whose_processes_cannot_be_killed_ends(
    cage: ContainerCage, monkeypatch: pytest.MonkeyPatch, failure: SandboxError
) -> None:
    """Its main program has ended, and the others have taken all processes that it may have."""

    async def refuse(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(container_cage, "start_program", refuse)
    await cage.kill_all()
    live: Any = cage.current
    assert live.reasons == ["its processes could not be killed"]


async def test_a_request_of_a_client_that_hangs_up_leaves_no_helper(
    cage: ContainerCage, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers: list[Helper] = []

    async def start(*_: Any, **__: Any) -> Helper:
        helpers.append(Helper())
        return helpers[-1]

    monkeypatch.setattr(cage, "start", start)
    async for run in cancel_at_every_await(lambda: cage.request("stat", path="/")):
        assert all(helper.is_killed for helper in helpers), f"cancelled at suspension {run.at}"
    assert len(helpers) > 1


class FailedHelper(Helper):
    info = SimpleNamespace(exit_code=137)

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer

    async def write(self, data: bytes) -> None:
        if not self._answer:
            raise InvalidRequest("the process no longer reads its stdin")

    async def output(self) -> AsyncIterator[OutputEvent]:
        yield OutputEvent("stdout", self._answer)


@pytest.mark.parametrize(
    ("answer", "status"),
    [(b"", 409), (b"{", 409), (b'{"errno": "ENAMETOOLONG"}', 400), (b'{"errno": "ENOENT"}', 404)],
    ids=["killed", "killed early", "long name", "missing"],
)
async def test_a_request_that_the_helper_cannot_carry_out_is_no_internal_error(
    cage: ContainerCage, monkeypatch: pytest.MonkeyPatch, answer: bytes, status: int
) -> None:
    """At the end of the main program all processes are killed, that of a `docker cp` too: it was answered 500."""

    async def start(*_: Any, **__: Any) -> Helper:
        return FailedHelper(answer)

    monkeypatch.setattr(cage, "start", start)
    with pytest.raises(DockerError) as refused:
        await cage.request("stat", path="/")
    assert refused.value.status == status


@pytest.mark.parametrize("error", [SandboxDestroyed(), SessionEnded("its cage was closed")])
def test_a_container_that_is_being_removed_is_a_conflict(error: SandboxError) -> None:
    assert refusal_of(error).status == 409
