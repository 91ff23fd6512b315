"""`sandkeep bench`: hands its options to the benchmark, which is loaded only here."""

from __future__ import annotations

import argparse


def bench(arguments: argparse.Namespace) -> int:
    from sandkeep.bench import main

    options = arguments.options[1:] if arguments.options[:1] == ["--"] else arguments.options
    return main(options)
