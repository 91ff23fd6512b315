"""E2B's forks of which a later one fails for the host's fault: the client is told of those before it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmcell.core.errors import BackendUnavailable
from warmcell.interfaces.serve.e2b import control
from warmcell.interfaces.serve.e2b.creation import Create
from warmcell.interfaces.serve.service import LOCAL_TENANT


async def fork(monkeypatch: pytest.MonkeyPatch, *made: object) -> Any:
    """The answer to a request for as many forks; each is made, or fails with its error."""
    service = SimpleNamespace(sandboxes=SimpleNamespace(reserve=lambda tenant: nullcontext()))
    entry = SimpleNamespace(metadata={}, sandbox=SimpleNamespace(work_dir="/"))
    homes = iter(made)

    async def read_body(request: object) -> bytes:
        return json.dumps({"count": len(made)}).encode()

    async def copy_home(*_: object) -> object:
        home = next(homes)
        if isinstance(home, Exception):
            raise home
        return home

    async def pass_on(*values: object) -> object:
        return values[3]

    stand_ins: dict[str, Any] = {"read_body": read_body, "copy_home": copy_home, "_handle": lambda handle: handle}
    stand_ins |= {"make_prepared": pass_on, "register": pass_on, "get_service": lambda request: service}
    stand_ins["_entry"] = lambda request, tenant: entry
    stand_ins["_box"] = lambda entry: SimpleNamespace(asked=Create(), image=None)
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(control, name, stand_in)
    return json.loads(bytes((await control.fork(cast(Any, None), LOCAL_TENANT)).body))


async def test_a_fork_that_fails_does_not_hide_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ran until their timeout and counted against the quota, and nobody had their ids."""
    first, failed, last = await fork(monkeypatch, "one", BackendUnavailable("the host's disk is full"), "three")
    assert (first, last) == ({"sandbox": "one"}, {"sandbox": "three"}) and failed["error"]["code"] == 503


async def test_a_first_fork_that_fails_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable):
        await fork(monkeypatch, BackendUnavailable("the host's disk is full"), "two")
