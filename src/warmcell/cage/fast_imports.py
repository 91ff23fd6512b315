"""Parts of the standard library, taken from its C modules to avoid the imports of the Python ones.

Every command starts a manager, and `socket`, `signal`, `functools` and `json` take longer to load than the whole cage.
Zygotes of a pool load them for their guests.
"""

from __future__ import annotations

import _json
import _socket as socket
from math import inf, nan

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
    from functools import lru_cache as lru_cache
    from functools import partial as partial
    from typing import Any, NoReturn, Tuple, Union
else:
    import _signal as signal
    from _functools import _lru_cache_wrapper, partial

    def lru_cache(maxsize):
        return lambda function: _lru_cache_wrapper(function, maxsize, False, tuple)


__all__ = ["lru_cache", "partial", "read_json", "read_json_at", "signal", "socket", "write_json"]


class _DecoderSettings:
    """The attributes of `json.JSONDecoder` that the scanner uses."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = {"-Infinity": -inf, "Infinity": inf, "NaN": nan}.__getitem__


def _refuse(thing: object) -> NoReturn:
    raise TypeError(f"{type(thing).__name__} is not JSON serializable")


_scan = _json.make_scanner(_DecoderSettings)  # type: ignore[arg-type]
_encoding = (None, _refuse, _json.encode_basestring_ascii, None, ":", ",")
_chunks, _sorted_chunks = (_json.make_encoder(*_encoding, is_sorted, False, True) for is_sorted in (False, True))


def write_json(value: Any, *, is_sorted: bool = False) -> str:
    """Encode without spaces. `is_sorted`: equal values have equal texts."""
    return "".join((_sorted_chunks if is_sorted else _chunks)(value, 0))


def read_json_at(text: str, start: int) -> Tuple[Any, int]:
    """The value that starts there, and its end; ValueError if it is not JSON."""
    try:
        return _scan(text, start)
    except (StopIteration, SystemError):  # SystemError: before Python 3.12 its errors require `json`
        raise ValueError("not JSON") from None


def read_json(text: Union[str, bytes]) -> Any:
    """Parse the output of `write_json`; surrounding spaces are not allowed."""
    text = text if isinstance(text, str) else text.decode()
    value, end = read_json_at(text, 0)
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value
