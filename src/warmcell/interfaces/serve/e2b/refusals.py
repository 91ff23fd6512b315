"""Errors as E2B's control plane renders them."""

from __future__ import annotations

from starlette.responses import Response

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.responses import HttpError, error_response, json_response, public_message, status_of


def e2b_refusal(error: Exception) -> Response:
    status, message, headers = 500, str(error), {}
    if isinstance(error, HttpError):
        status, message, headers = error.status, error.message, error.headers
    elif isinstance(error, SandboxError):
        status, message = status_of(error), public_message(error)
        status = {422: 400, 410: 404}.get(status, status)  # the SDKs know these
    else:
        return error_response(error)
    return json_response({"code": status, "message": message}, status, headers)
