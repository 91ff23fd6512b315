"""`site`, where the program in front of the command left it out: for whoever looks for packages beside our own."""

from __future__ import annotations

#: Set by the command. A program that was started without `site` by somebody else's wish stays without.
is_due = False


def run_site() -> None:
    global is_due
    if is_due:
        is_due = False
        import site

        site.main()
