"""Without a token file there is one tenant, and its sandboxes are spread over the workers.

A new one goes to the worker with the fewest; its id then names the worker. Lists are merged. A snapshot is in the
worker of its sandbox, and sandboxes that start with it are made there. Volumes are all in one worker, and so are the
sandboxes that mount them.
"""

from __future__ import annotations

import hmac
import json
from collections import Counter
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.authentication import find_token
from warmcell.interfaces.serve.e2b.templates import TEMPLATES
from warmcell.interfaces.serve.front.ask_peers import merge_lists
from warmcell.interfaces.serve.front.fan_out import ask, ask_all, read_ahead, replay
from warmcell.interfaces.serve.front.placement import OWN_SANDBOXES, SNAPSHOTS, TEMPLATE_NAMES, Placement
from warmcell.interfaces.serve.front.relay import Receive, relay
from warmcell.interfaces.serve.front.shared_counts import SharedCounts
from warmcell.interfaces.serve.front.workers import Worker
from warmcell.interfaces.serve.middleware import REPORTED_ELSEWHERE
from warmcell.interfaces.serve.quotas import SANDBOXES
from warmcell.interfaces.serve.responses import HttpError, json_response
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import hash_token


class Spread:
    """In the front. Answers the requests that `Placement` leaves to it where sandboxes are spread."""

    def __init__(self, settings: Settings, placement: Placement, workers: list[Worker], counts: SharedCounts) -> None:
        self._settings, self._placement, self._workers, self._counts = settings, placement, workers, counts
        #: By worker: sandboxes that are being requested, which the worker may not have counted yet.
        self._requested: Counter[int] = Counter()

    async def answer(self, request: Request, send: Any) -> None:
        request.scope[REPORTED_ELSEWHERE] = True
        path = request.scope["path"]
        if path.startswith(TEMPLATE_NAMES):
            owner = await self._find_snapshot(request, path.removeprefix("/templates/").removeprefix("aliases/"))
            await relay(owner or self._home(request), request.scope, request.receive, send)
        elif request.method == "POST":
            await self._create(request, send)
        else:
            await (await self._list(request))(request.scope, request.receive, send)

    def _home(self, request: Request) -> Worker:
        return self._workers[self._placement.home(request)]

    # ---- new sandboxes ----

    async def _create(self, request: Request, send: Any) -> None:
        worker, receive = self._least_used(), request.receive
        if request.scope["path"] != OWN_SANDBOXES:  # E2B's may name a snapshot or volumes
            worker, receive = await self._choose_by_body(request)
        self._requested[worker.number] += 1
        try:
            await relay(worker, request.scope, receive, send)
        finally:
            self._requested[worker.number] -= 1

    def _least_used(self) -> Worker:
        return min(self._workers, key=self._load)

    def _load(self, worker: Worker) -> tuple[bool, int, int]:
        number = worker.number
        return not worker.is_ready, self._counts.of_worker(number, SANDBOXES) + self._requested[number], number

    async def _choose_by_body(self, request: Request) -> tuple[Worker, Receive]:
        if not self._is_allowed(request):  # the worker refuses it, without reading its body
            return self._home(request), request.receive
        body, has_more = await read_ahead(request.receive, self._settings.max_body)
        receive = replay(body, request.receive, has_more=has_more)
        try:
            asked = None if has_more else json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):  # which every worker refuses
            return self._least_used(), receive
        return await self._choose(request, asked.get("templateID"), bool(asked.get("volumeMounts"))), receive

    def _is_allowed(self, request: Request) -> bool:
        token = self._settings.token
        return token is None or hmac.compare_digest(hash_token(find_token(request) or ""), hash_token(token))

    async def _choose(self, request: Request, template: Any, has_volumes: bool) -> Worker:
        owner, home = None, self._home(request)
        if isinstance(template, str) and template not in TEMPLATES:
            owner = await self._find_snapshot(request, template)
        if owner is not None and owner is not home and has_volumes:
            message = "the snapshot and the volumes are in different processes of this server"
            raise HttpError(409, f"{message}; mount the volumes in the sandbox that the snapshot is taken from")
        return owner or (home if has_volumes else self._least_used())

    async def _find_snapshot(self, request: Request, name: str) -> Worker | None:
        """The worker that has the snapshot with this name or id; None if no worker has it, or the token is wrong."""
        query = f"name={quote(name.removesuffix(':default'), safe='')}".encode()
        scope = {**request.scope, "method": "GET", "path": SNAPSHOTS, "raw_path": SNAPSHOTS.encode()}
        for worker in self._workers:
            found = await ask(worker, scope | {"query_string": query}, request.receive, is_part=True)
            if found.status_code == 200 and json.loads(bytes(found.body)):
                return worker
        return None

    # ---- lists ----

    async def _list(self, request: Request) -> Response:
        if request.scope["path"] in (OWN_SANDBOXES, SNAPSHOTS):
            found = await ask_all(self._workers, request.scope, request.receive)
            if found[0].status_code != 200:
                return found[0]
            rows = [row for each in found for row in json.loads(bytes(each.body))]
            return json_response(sorted(rows, key=lambda row: row.get("created", 0)))
        return await merge_lists(self._workers, request)
