"""Signed URLs of files: whom their use is charged to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from warmcell.interfaces.serve.e2b.box import USERS, Box
from warmcell.interfaces.serve.e2b.envd import owner_of


@pytest.mark.attack("S3-27")
@pytest.mark.parametrize(
    ("method", "operation", "headers"),
    [
        ("GET", "read", []),
        ("HEAD", "read", []),
        ("POST", "write", []),
        ("GET", "read", [(b"e2b-sandbox-id", b"id")]),
        ("GET", "read", [(b"e2b-sandbox-id", b"id"), (b"x-access-token", b"wrong")]),
    ],
)
def test_each_use_is_charged_to_the_owner_of_the_sandbox(
    method: str, operation: str, headers: list[tuple[bytes, bytes]]
) -> None:
    """A HEAD, or the id of a sandbox in a header, made a request that is served and counts for no token."""
    box: Any = Box.__new__(Box)
    box.token, box.traffic_token, box.users = "secret", "traffic", USERS
    box.entry = SimpleNamespace(tenant="owner", state=SimpleNamespace(find=lambda kind: box))
    found = SimpleNamespace(all=lambda: [box.entry], find_any=lambda identity: box.entry if identity else None)
    app = SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(sandboxes=found)))
    for signature, owner in ((box.sign("a", operation, "user", None), "owner"), ("v1_forged", None)):
        query = f"path=a&username=user&signature={signature}".replace("+", "%2B").encode()
        scope = {"type": "http", "method": method, "query_string": query, "headers": headers, "app": app}
        assert owner_of(Request(scope)) == owner
