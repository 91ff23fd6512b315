"""What stands behind the question mark: read with its bounds, and described for `/openapi.json`."""

from __future__ import annotations

import math
from typing import Any

from starlette.requests import Request

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.exchange import whole_number
from warmcell.interfaces.serve.v1.models import PLACE


def query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema}


#: Of what a sandbox has, or the work directory itself.
PATH = query("path", {"type": "string", "pattern": PLACE, "maxLength": 4000})


def number_in_query(request: Request, name: str, usual: float, most: float = 1e12) -> float:
    text = request.query_params.get(name)
    if text is None:
        return usual
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 < value <= most):
        raise InvalidRequest(f"must be a number above 0 and at most {most:g}", field=name)
    return value


def whole_in_query(request: Request, name: str, usual: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return usual
    number = whole_number(text)
    if number is None or not 1 <= number <= most:
        raise InvalidRequest(f"must be a whole number from 1 to {most}", field=name)
    return number


def flag_in_query(request: Request, name: str, usual: bool = False) -> bool:
    text = request.query_params.get(name)
    if text not in (None, "true", "false"):
        raise InvalidRequest("must be true or false", field=name)
    return usual if text is None else text == "true"


def path_in_query(request: Request, usual: str = ".") -> str:
    return request.query_params.get("path", usual)
