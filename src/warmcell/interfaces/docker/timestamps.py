"""Moments in queries: Unix seconds with a fraction, or RFC 3339. Pure."""

from __future__ import annotations

from warmcell.images.model import parse_time
from warmcell.interfaces.docker.messages import DockerError


def parse_moment(text: str) -> float:
    """Seconds since 1970; 0 for an empty text."""
    if not text:
        return 0.0
    try:
        moment = float(text)
    except ValueError:
        found = parse_time(text)
        try:
            moment = -1.0 if found is None else found.timestamp()
        except (OverflowError, ValueError):  # a year that this host's clock does not have
            moment = -1.0
    if not 0 <= moment < 1e12:
        raise DockerError(400, f"{text[:40]!r} is not a timestamp")
    return moment
