"""Rows of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One protection: `status` is works, weaker or missing; `remedy` says what to do, or is None."""

    name: str
    status: str
    mechanism: str | None = None
    proof: str | None = None
    remedy: str | None = None
