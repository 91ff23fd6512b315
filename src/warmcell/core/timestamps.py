"""Times as formats carry them. A guest sets the times of its files freely, to years that no format has."""

from __future__ import annotations

import math
import time

#: The years 1 to 9999: those of RFC 3339, of `datetime` and of protobuf.
_EARLIEST, _LATEST = -62_135_596_800, 253_402_300_799
#: A tar header has eleven octal digits, up to the year 2242.
_LATEST_IN_TAR = 8**11 - 1


def limit_time(seconds: float) -> float:
    """The nearest time between the years 1 and 9999."""
    return max(_EARLIEST, min(seconds, _LATEST))


def limit_tar_time(seconds: float) -> float:
    """The nearest time that every tar header carries. Without a fraction below 1, which Python writes as `1e-07`."""
    bounded = max(0, min(seconds, _LATEST_IN_TAR))
    return bounded if bounded >= 1 else 0


def rfc3339(seconds: float, nanoseconds: int = 0) -> str:
    """UTC with nanoseconds; the nearest time between the years 1 and 9999."""
    seconds = limit_time(seconds)
    whole = math.floor(seconds)
    at = time.gmtime(whole)
    fraction = max(0, min(nanoseconds or int((seconds - whole) * 10**9), 10**9 - 1))
    date = f"{at.tm_year:04d}-{at.tm_mon:02d}-{at.tm_mday:02d}"
    return f"{date}T{at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}.{fraction:09d}Z"
