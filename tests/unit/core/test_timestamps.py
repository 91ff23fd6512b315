"""Times of every year, within what formats carry."""

from __future__ import annotations

import io
import math
import tarfile
from datetime import UTC, datetime

import pytest

from warmcell.core.timestamps import limit_tar_time, limit_time, rfc3339


@pytest.mark.parametrize(
    ("seconds", "nanoseconds", "text"),
    [
        (0, 0, "1970-01-01T00:00:00.000000000Z"),
        (0.25, 0, "1970-01-01T00:00:00.250000000Z"),
        (-0.25, 0, "1969-12-31T23:59:59.750000000Z"),
        (5, 7, "1970-01-01T00:00:05.000000007Z"),
        (5, 10**30, "1970-01-01T00:00:05.999999999Z"),
        (253_402_300_799, 5, "9999-12-31T23:59:59.000000005Z"),
        (253_402_300_800, 0, "9999-12-31T23:59:59.000000000Z"),
        (2**63 - 1, 0, "9999-12-31T23:59:59.000000000Z"),
        (10**400, 0, "9999-12-31T23:59:59.000000000Z"),
        (math.inf, 0, "9999-12-31T23:59:59.000000000Z"),
        (-62_135_596_801, 0, "0001-01-01T00:00:00.000000000Z"),
        (-(2**63), 0, "0001-01-01T00:00:00.000000000Z"),
        (math.nan, 0, "0001-01-01T00:00:00.000000000Z"),
    ],
)
def test_text_has_a_year_of_four_digits(seconds: float, nanoseconds: int, text: str) -> None:
    assert rfc3339(seconds, nanoseconds) == text
    assert datetime.fromtimestamp(limit_time(seconds), UTC).year in range(1, 10_000)


@pytest.mark.parametrize("seconds", [-(2.0**63), -1.5, 0.0, 1e-7, 0.5, 1.5, 1.7e9 + 0.25, 2.0**33, 2.0**63, math.inf])
def test_tar_headers_have_digits_only(seconds: float) -> None:
    """Not 9.2e+18, which GNU tar and Go refuse."""
    info = tarfile.TarInfo("x")
    info.mtime = limit_tar_time(seconds)
    data = info.tobuf(tarfile.PAX_FORMAT)
    assert b"e+" not in data and b"e-" not in data and b"mtime=-" not in data
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getmembers()[0].mtime == (0 if seconds < 1 else min(seconds, 8**11 - 1))
