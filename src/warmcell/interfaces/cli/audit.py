"""`warmcell audit FILE`: prints an audit file in words."""

from __future__ import annotations

import argparse

from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.render import print_json


def audit(arguments: argparse.Namespace) -> int:
    """Print one line per record, oldest first; '-' reads stdin."""
    from warmcell.observe.audit import in_words, read_audit

    try:
        file = open(0 if arguments.file == "-" else arguments.file, "rb", closefd=arguments.file != "-")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"cannot read {arguments.file!r}: {error.strerror}") from None
    with file:
        for record in read_audit(file):
            if arguments.json:
                print_json(record)
            else:
                print(in_words(record))
    return OK
