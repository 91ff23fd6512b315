"""Runs `site` late, for code that looks for other packages, if our command started Python without it."""

from __future__ import annotations

#: Set by our command only: a program that its user started without `site` stays without it.
is_due = False


def run_site() -> None:
    global is_due
    if is_due:
        is_due = False
        import site

        site.main()
