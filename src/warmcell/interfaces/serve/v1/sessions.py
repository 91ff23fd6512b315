"""`/v1/sandboxes/{id}/sessions`: interpreters that remember from one cell to the next."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import SessionNotFound
from warmcell.interfaces.serve.ceiling import check_time
from warmcell.interfaces.serve.doors import NOTHING, door
from warmcell.interfaces.serve.exchange import (
    ENDED_OTHERWISE,
    Refused,
    answer,
    as_it_is,
    plain_outcome,
    read_model,
    while_connected,
)
from warmcell.interfaces.serve.held_sandboxes import Held
from warmcell.interfaces.serve.service import held_of, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.event_streams import Tell, event_stream, told, wants_events
from warmcell.interfaces.serve.v1.living_models import BranchBody, CellBody, InputBody, SessionBody
from warmcell.interfaces.serve.v1.sandboxes import plain_sandbox
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.session import AsyncSession
from warmcell.sessions.cell_results import DisplayData

MOST_SESSIONS = 32


class HeldSession:
    """A session, and the question of its cell that waits for its client."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        self.question: asyncio.Future[str] | None = None

    def plain(self) -> dict[str, str]:
        return {"id": self.session.id, "language": self.session.language}


async def every(request: Request, tenant: Tenant) -> Response:
    """The sessions of the sandbox."""
    return answer([session.plain() for session in _sessions(held_of(request, tenant)).values()])


async def create(request: Request, tenant: Tenant) -> Response:
    """Starts an interpreter."""
    held = held_of(request, tenant)
    body = await read_model(request, SessionBody, service_of(request).settings.max_body)
    if len(_sessions(held)) + held.extras.get("sessions_coming", 0) >= MOST_SESSIONS:
        raise Refused(429, f"there are {MOST_SESSIONS} sessions already", headers={"Retry-After": "5"})
    held.extras["sessions_coming"] = held.extras.get("sessions_coming", 0) + 1
    try:
        with as_it_is("limits.processes"):
            session = await held.sandbox.session(body.language, cwd=body.cwd, env=body.env)
    finally:
        held.extras["sessions_coming"] -= 1
    return answer(_keep(held, session).plain(), 201)


async def one(request: Request, tenant: Tenant) -> Response:
    """One of them."""
    return answer(_session(request, tenant).plain())


async def close(request: Request, tenant: Tenant) -> Response:
    """Ends the interpreter and all that it started."""
    found = _session(request, tenant)
    _sessions(held_of(request, tenant)).pop(found.session.id, None)
    await found.session.close()
    return Response(status_code=204)


async def run(request: Request, tenant: Tenant) -> Response:
    """Runs a cell. What it raised is in the result; variables, imports and the directory stay."""
    found, service = _session(request, tenant), service_of(request)
    body = await read_model(request, CellBody, service.settings.max_body)
    if body.timeout is not None:
        check_time(body.timeout, service.settings.max_timeout)

    async def cell(**listeners: Any) -> dict[str, Any]:
        async with service.turn(tenant):
            try:
                return plain_outcome(await found.session.run(body.code, timeout=body.timeout, **listeners))
            except ENDED_OTHERWISE as error:
                return plain_outcome(error)

    if wants_events(request) or body.answers_input:
        return event_stream(told(lambda tell: cell(**_listeners(found, tell, body.answers_input))))
    return answer(await while_connected(request, cell()))


def _listeners(found: HeldSession, tell: Tell, answers_input: bool) -> dict[str, Any]:
    async def ask(prompt: str) -> str:
        found.question = asyncio.get_running_loop().create_future()
        await tell("input", {"prompt": prompt})
        return await found.question

    listeners: dict[str, Callable[[Any], Awaitable[object]]] = {
        "on_stdout": lambda text: tell("stdout", {"text": text}),
        "on_stderr": lambda text: tell("stderr", {"text": text}),
        "on_display": lambda shown: tell("display", _plain_display(shown)),
    }
    return listeners | ({"on_input": ask} if answers_input else {})


def _plain_display(shown: DisplayData) -> dict[str, Any]:
    return dataclasses.asdict(shown)


async def type_input(request: Request, tenant: Tenant) -> Response:
    """What the user typed, for the `input` event of the cell under way."""
    found = _session(request, tenant)
    body = await read_model(request, InputBody, service_of(request).settings.max_body)
    question, found.question = found.question, None
    if question is None or question.done():
        raise Refused(409, "no cell of this session has asked for input")
    question.set_result(body.text)
    return Response(status_code=204)


async def interrupt(request: Request, tenant: Tenant) -> Response:
    """Ends the cell that is under way, as Ctrl-C would."""
    await _session(request, tenant).session.interrupt()
    return Response(status_code=204)


async def restart(request: Request, tenant: Tenant) -> Response:
    """A new interpreter, without the variables."""
    await _session(request, tenant).session.restart()
    return Response(status_code=204)


async def variables(request: Request, tenant: Tenant) -> Response:
    """What the cells have defined, as short texts."""
    found = _session(request, tenant)
    return answer(await while_connected(request, found.session.variables()))


async def fork(request: Request, tenant: Tenant) -> Response:
    """A second session with these variables and files, in a sandbox of its own, which is yours too."""
    found, service = _session(request, tenant), service_of(request)
    body = await read_model(request, BranchBody, service.settings.max_body)
    branches: list[AsyncSession] = []

    async def branch() -> AsyncSandbox:
        branches.append(await found.session.fork(body.reseed))
        return branches[0].sandbox

    with as_it_is():
        held = await service.held.add_slowly(branch, tenant, body.lifetime, body.metadata)
    return answer({"sandbox": plain_sandbox(held), "session": _keep(held, branches[0]).plain()}, 201)


def _sessions(held: Held) -> dict[str, HeldSession]:
    found: dict[str, HeldSession] = held.extras.setdefault("sessions", {})
    return found


def _keep(held: Held, session: AsyncSession) -> HeldSession:
    made = _sessions(held)[session.id] = HeldSession(session)
    return made


def _session(request: Request, tenant: Tenant) -> HeldSession:
    found = _sessions(held_of(request, tenant)).get(request.path_params["session"])
    if found is None:
        raise SessionNotFound("there is no such session")
    return found


def routes() -> list[Any]:
    every_one = "/v1/sandboxes/{id}/sessions"
    at = every_one + "/{session}"
    return [
        door("GET", every_one, every, "sandbox", answers=("Sessions",)),
        door("POST", every_one, create, "sandbox", body=SessionBody, answers=("Session",), status=201),
        door("GET", at, one, "sandbox", answers=("Session",)),
        door("DELETE", at, close, "sandbox", **NOTHING),
        door("POST", f"{at}/run", run, "sandbox", body=CellBody, answers=("Cell", "text/event-stream")),
        door("POST", f"{at}/input", type_input, "sandbox", body=InputBody, **NOTHING),
        door("POST", f"{at}/interrupt", interrupt, "sandbox", ends_something=True, **NOTHING),
        door("POST", f"{at}/restart", restart, "sandbox", **NOTHING),
        door("GET", f"{at}/variables", variables, "sandbox", answers=("Variables",)),
        door("POST", f"{at}/fork", fork, "sandbox", body=BranchBody, answers=("Branch",), status=201),
    ]
