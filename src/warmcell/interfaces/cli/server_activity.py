"""What a server has under way, asked of its `/v1/activity`."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from warmcell.core.errors import BackendUnavailable
from warmcell.core.lines import one_line
from warmcell.interfaces.cli.exits import UsageError

_LARGEST = 4 << 20
_PATIENCE = 10.0


class _NoRedirects(HTTPRedirectHandler):
    """The token is for this server alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ServerActivity:
    """`read()` is a row for each run and each sandbox."""

    def __init__(self, url: str, token: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--server: {url[:80]!r} is no address", "for example --server http://127.0.0.1:8000")
        self._request = Request(f"{url.rstrip('/')}/v1/activity")
        if token:
            self._request.add_header("Authorization", f"Bearer {token}")
        self._opener = build_opener(ProxyHandler({}), _NoRedirects)

    def read(self) -> list[dict[str, Any]]:
        found = self._asked()
        try:
            runs = [_row("runs", run["id"], run["language"], run["state"], run["seconds"]) for run in found["runs"]]
            boxes = [_row("sandboxes", box["id"], "", "open", box["seconds"]) for box in found["sandboxes"]]
        except (KeyError, TypeError, ValueError):
            raise BackendUnavailable("the server's answer is not one of Warmcell's") from None
        return runs + boxes

    def _asked(self) -> Any:
        try:
            with self._opener.open(self._request, timeout=_PATIENCE) as answer:
                return json.loads(answer.read(_LARGEST))
        except HTTPError as error:
            hint = "--token or WARMCELL_TOKEN, of a token with scope 'metrics'" if error.code in (401, 403) else None
            raise BackendUnavailable(f"the server answers {error.code}", hint=hint) from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise BackendUnavailable(f"no server answers there: {reason}", hint="start 'warmcell serve'") from None
        except ValueError:
            raise BackendUnavailable("the server's answer is not one of Warmcell's") from None


def _row(kind: str, identity: str, language: str, state: str, seconds: float) -> dict[str, Any]:
    texts = {"kind": kind, "id": identity, "language": language, "state": state}
    return {**{name: one_line(str(text)) for name, text in texts.items()}, "seconds": float(seconds)}
