"""Query parameters: parsing with bounds, and their description for `/openapi.json`."""

from __future__ import annotations

import math
from typing import Any

from starlette.requests import Request

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.responses import parse_whole_number
from warmcell.interfaces.serve.v1.models import PLACE_IN_URL


def query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema}


#: A path in the work directory, or the work directory itself.
PATH = query("path", {"type": "string", "pattern": PLACE_IN_URL, "maxLength": 4000})


def number_in_query(request: Request, name: str, default: float, maximum: float = 1e12) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 < value <= maximum):
        raise InvalidRequest(f"must be a number above 0 and at most {maximum:g}", field=name)
    return value


def whole_in_query(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    number = parse_whole_number(text)
    if number is None or not 1 <= number <= maximum:
        raise InvalidRequest(f"must be a whole number from 1 to {maximum}", field=name)
    return number


def flag_in_query(request: Request, name: str, default: bool = False) -> bool:
    text = request.query_params.get(name)
    if text not in (None, "true", "false"):
        raise InvalidRequest("must be true or false", field=name)
    return default if text is None else text == "true"


def path_in_query(request: Request) -> str:
    return request.query_params.get("path", ".")
