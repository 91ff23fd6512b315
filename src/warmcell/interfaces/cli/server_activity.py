"""The runs and sandboxes of a server, and its nodes, from its `/v1/activity`, and how to end them."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from warmcell.core.errors import BackendUnavailable
from warmcell.core.lines import one_line
from warmcell.interfaces.cli.exits import UsageError

_MAX_BYTES = 4 << 20
_TIMEOUT = 10.0


class _NoRedirects(HTTPRedirectHandler):
    """Do not follow redirects: the token is for this server only."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ServerActivity:
    """`read()` returns a row for each run and each sandbox, and for each node if the server has a cluster."""

    def __init__(self, url: str, token: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--server: {url[:80]!r} is not a URL", "for example --server http://127.0.0.1:8000")
        self._url = f"{url.rstrip('/')}/v1/activity"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._opener = build_opener(ProxyHandler({}), _NoRedirects)

    def read(self) -> list[dict[str, Any]]:
        body = self._send("GET", self._url, "metrics") or b""
        try:
            found = json.loads(body)
            runs = [_row("runs", run, run["language"], run["state"]) for run in found["runs"]]
            boxes = [_row("sandboxes", box, "", "open") for box in found["sandboxes"]]
            nodes = [_node_row(node) for node in found.get("nodes", ())]
        except (KeyError, TypeError, ValueError):
            raise BackendUnavailable("the response is not from a Warmcell server") from None
        if nodes:
            return nodes + runs + boxes
        return [{name: value for name, value in row.items() if name != "node"} for row in runs + boxes]

    def end(self, identity: str) -> None:
        """End a run or sandbox of any tenant."""
        for kind in ("runs", "sandboxes"):
            if self._send("DELETE", f"{self._url}/{kind}/{quote(identity, safe='')}", "operate") is not None:
                return
        hint = "'warmcell top --server URL' lists the ids; the run of an MCP client ends with its sandbox"
        raise BackendUnavailable(f"no run or sandbox has the id {identity[:40]!r}", hint=hint)

    def _send(self, method: str, url: str, scope: str) -> bytes | None:
        """The body of the response; None if the server does not find what the URL names."""
        try:
            request = Request(url, headers=self._headers, method=method)
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                body: bytes = answer.read(_MAX_BYTES)
                return body
        except HTTPError as error:
            if error.code == 404:
                return None
            hint = f"give a token with the scope '{scope}' by --token or WARMCELL_TOKEN"
            message = f"the server returned HTTP status {error.code}"
            raise BackendUnavailable(message, hint=hint if error.code in (401, 403) else None) from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise BackendUnavailable(f"cannot connect to the server: {reason}", hint="start 'warmcell serve'") from None


def _row(kind: str, found: dict[str, Any], language: str, state: str) -> dict[str, Any]:
    node = found.get("node", "")
    texts = {"kind": kind, "id": found["id"], "language": language, "state": state, "node": node}
    return {**{name: one_line(str(text)) for name, text in texts.items()}, "seconds": float(found["seconds"])}


def _node_row(node: dict[str, Any]) -> dict[str, Any]:
    """A node of a cluster: its requests, or why it gets none."""
    state = node["reason"] or f"{node['running']} requests, {node['cores']} processors"
    return _row("nodes", {"id": node["id"][:8], "node": node["address"], "seconds": 0}, "", state)
