"""`warmcell bench`: measures what a sandboxed run costs on this host."""

from __future__ import annotations

import argparse


def bench(arguments: argparse.Namespace) -> int:
    from warmcell.diagnosis.bench import main

    return main(max(2, arguments.rounds), as_json=arguments.json)
