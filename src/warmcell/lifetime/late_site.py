"""Runs `site` if the program in front of the command left it out, for code that looks for other packages."""

from __future__ import annotations

#: Set by the command. A program that its caller started without `site` stays without.
is_due = False


def run_site() -> None:
    global is_due
    if is_due:
        is_due = False
        import site

        site.main()
