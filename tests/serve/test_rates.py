"""How much a tenant may ask, and that others do not feel it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.conftest import make_token
from tests.serve.requests import create_sandbox, stream_events

from warmcell.interfaces.serve.app import Observers, make_routes
from warmcell.interfaces.serve.quotas import RESERVED_FOR_DELETE, ConcurrencyLimiter, RateLimiter
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.routing import AuthRoute
from warmcell.interfaces.serve.tokens import Tenant

SLOW = Tenant("1", "slow", "0" * 64, rate=4, connections=1)


def test_a_bucket_empties_and_fills() -> None:
    now = [100.0]
    rates = RateLimiter(lambda: now[0])
    for _ in range(8):  # twice what comes in a second
        rates.take(SLOW)
    with pytest.raises(HttpError) as refused:
        rates.take(SLOW)
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    rates.take(Tenant("2", "other", "0" * 64, rate=4))
    now[0] += 0.25
    rates.take(SLOW)
    with pytest.raises(HttpError):
        rates.take(SLOW)
    now[0] += 1000
    for _ in range(8):
        rates.take(SLOW)
    with pytest.raises(HttpError):
        rates.take(SLOW)
    for _ in range(1000):
        rates.take(Tenant("3", "free", "0" * 64, rate=0))


def test_answers_under_way_are_counted() -> None:
    under_way = ConcurrencyLimiter()
    under_way.enter(SLOW)
    with pytest.raises(HttpError):
        under_way.enter(SLOW)
    under_way.leave(SLOW)
    under_way.enter(SLOW)


def test_who_has_filled_all_places_can_still_end_something() -> None:
    under_way = ConcurrencyLimiter()
    under_way.enter(SLOW)
    for _ in range(RESERVED_FOR_DELETE):
        under_way.enter(SLOW, ends_something=True)
    for ends_something in (True, False):
        with pytest.raises(HttpError):
            under_way.enter(SLOW, ends_something=ends_something)
    under_way.leave(SLOW)
    with pytest.raises(HttpError):
        under_way.enter(SLOW)
    under_way.enter(SLOW, ends_something=True)


def test_which_doors_end_something() -> None:
    doors = [route for route in make_routes(Observers()) if isinstance(route, AuthRoute)]
    ends = {f"{method} {door.path}" for door in doors if door.ends_something for method in door.methods or ()}
    assert {line for line in ends if not line.startswith("DELETE ")} == {
        "POST /process.Process/SendSignal",
        "POST /v1/sandboxes/{id}/processes/{pid}/signal",
        "POST /v1/sandboxes/{id}/sessions/{session}/interrupt",
    }
    assert {"DELETE /sandboxes/{id}", "DELETE /v1/sandboxes/{id}"} < ends


def test_who_asks_too_much_is_told_when_to_come_again(start_server: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    tokens = [
        make_token(file, "quick", "--rate", "1"),
        make_token(file, "many", "--connections", "2"),
        make_token(file, "other"),
    ]
    with start_server("--tokens", str(file)) as server:
        quick, many, other = (
            httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=60, trust_env=False)
            for token in tokens
        )
        answers = [quick.get("/v1/sandboxes") for _ in range(30)]
        assert 429 in [answer.status_code for answer in answers[2:]]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "1" and refused.json()["error"]["retryable"] is True
        for path in ("/v1/usage", "/v1/identity"):  # which need no scope
            assert 429 in [quick.get(path).status_code for _ in range(30)], path
        at = create_sandbox(many)
        with stream_events(many, "GET", f"{at}/watch") as one, stream_events(many, "GET", f"{at}/watch") as two:
            assert (next(one)[0], next(two)[0]) == ("ready", "ready")
            assert many.get("/v1/sandboxes").status_code == 429
            assert other.get("/v1/sandboxes").status_code == 200
            assert many.delete(at).status_code == 204
            assert [list(events) for events in (one, two)] == [[], []]  # they have ended with it
        deadline = time.monotonic() + 30
        while many.get("/v1/sandboxes").status_code == 429:  # until the server has seen that they are gone
            assert time.monotonic() < deadline
            time.sleep(0.05)
