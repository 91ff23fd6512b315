"""Which node answers a request, and what is refused. Pure module."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

from warmcell.backends.ray.placement import Candidate, Needs
from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.requests import has_many_values
from warmcell.interfaces.serve.v1.runs import BACKGROUND_RUNS
from warmcell.languages.registry import canonical
from warmcell.workspace.untrusted_files import load_object

C = TypeVar("C", bound=Candidate)
#: The id of a sandbox ends with the first digits of its node's id.
SUFFIX_DIGITS = 8


class Kind(Enum):
    #: The node with the lowest load, in turn; repeated elsewhere if that node is lost.
    RUN = auto()
    #: The same, without a place in the queue: a new sandbox.
    CREATE = auto()
    #: The node of a sandbox.
    SANDBOX = auto()
    #: All nodes: a list of sandboxes, or figures.
    LIST = auto()
    FIGURES = auto()
    #: One node after the other, until one has what the request names.
    OPERATE = auto()
    SIGNED_LINK = auto()
    #: The node with what lasts beside sandboxes; see `choose_home`.
    HOME = auto()
    REFUSED = auto()


class Place(NamedTuple):
    kind: Kind
    #: The id of the sandbox.
    identity: str = ""
    #: Whether it makes a sandbox, which counts against the tenant's quota.
    is_creating: bool = False
    #: Why it is refused.
    reason: str = ""


_LISTS = ("/sandboxes", "/v2/sandboxes", "/v1/sandboxes")
_TEMPLATES = ("/templates", "/v2/templates", "/v3/templates")
_ONE_NODE = "they would be on one node only, and be lost with it"
#: By the beginning of the path: what a cluster does not have.
_REFUSED = {
    **dict.fromkeys(_TEMPLATES, f"templates are not available on a cluster: {_ONE_NODE}"),
    **dict.fromkeys(("/volumes", "/volumecontent"), f"volumes are not available on a cluster: {_ONE_NODE}"),
    "/snapshots": f"E2B snapshots are not available on a cluster: {_ONE_NODE}",
    "/v1/usage": "usage figures are not available on a cluster: each node would count its own; use /metrics",
    "/v1/audit": "there is no audit on a cluster: runs are on the nodes",
}
_REFUSED_OF_SANDBOXES = {
    ("POST", "/sandboxes/{id}/snapshots"): _REFUSED["/snapshots"],
    ("POST", "/v1/sandboxes/{id}/ports"): "ports are not exposed on a cluster: they would be on the node's loopback; "
    "use the WebSocket at /v1/sandboxes/ID/ports/PORT/ws",
}


def merge_identifiers(headers: Mapping[str, str], query: Mapping[str, str]) -> dict[str, str]:
    """What `classify` looks at, from where a node's routes read it: a signature from the query, ids from headers."""
    found = {name: text for name, text in headers.items() if name != "signature"}
    return found | ({"signature": query["signature"]} if "signature" in query else {})


def classify(
    method: str, path: str, scope: str | None, pattern: str, parameters: Mapping[str, Any], asked: Mapping[str, str]
) -> Place:
    """`scope` and `pattern` are the route's, "" if there is none; `asked` is from `merge_identifiers`."""
    for beginning, reason in _REFUSED.items():
        if path == beginning or path.startswith(f"{beginning}/"):
            return Place(Kind.REFUSED, reason=reason)
    if (refused := _REFUSED_OF_SANDBOXES.get((method, pattern))) is not None:
        return Place(Kind.REFUSED, reason=refused)
    if scope in ("metrics", "operate"):
        return Place(Kind.FIGURES if scope == "metrics" else Kind.OPERATE)
    if path in _LISTS and method in ("GET", "HEAD", "POST"):
        return Place(Kind.CREATE, is_creating=True) if method == "POST" else Place(Kind.LIST)
    if scope == "run" and method == "POST" and not path.startswith(BACKGROUND_RUNS):
        return Place(Kind.RUN)
    if "/sandboxes/{id}" in pattern:
        return Place(Kind.SANDBOX, parameters["id"], pattern.endswith("/fork"))
    # Elsewhere a client could choose its node, and have as much as it may have once on each.
    if scope is None and (identity := asked.get("e2b-sandbox-id")) is not None:
        return Place(Kind.SANDBOX, identity)
    if path == "/files" and "signature" in asked:
        return Place(Kind.SIGNED_LINK)
    is_new_session = path == "/mcp" and "mcp-session-id" not in asked
    return Place(Kind.HOME, is_creating=is_new_session)


def needs_of(body: bytes, *, is_sandbox: bool = False) -> Needs:
    """What a run or a sandbox needs of its node. Errors in the body are ignored here; the node reports them."""
    asked = None if has_many_values(body) else load_object(body)
    if asked is None:
        return Needs("", is_sandbox=is_sandbox)
    try:
        language = str(canonical(asked.get("language", "")))
    except SandboxError:
        language = ""
    return Needs(language, has_gpus=asked.get("gpus") is not None, is_sandbox=is_sandbox)


def choose_home(candidates: Iterable[C], token: str) -> C | None:
    """The node with a tenant's background runs and MCP sessions. If it is lost, only its tenants move."""

    def weight(one: C) -> bytes:
        return hashlib.sha256(f"{one.info.id} {token}".encode("utf-8", "surrogatepass")).digest()

    return max((one for one in candidates if not one.info.is_draining), key=weight, default=None)
