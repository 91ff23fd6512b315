"""`warmcell doctor` shows what this host, or each node of a cluster, can enforce; `warmcell bench` what a run costs."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from warmcell.interfaces.cli.exits import OK
from warmcell.interfaces.cli.messages import Progress, say_error
from warmcell.interfaces.cli.render import print_json
from warmcell.interfaces.cli.store_actions import table_lines

if TYPE_CHECKING:
    from warmcell.diagnosis.cluster import NodeReport
    from warmcell.diagnosis.rows import Row

COLUMNS = ("name", "status", "mechanism", "proof")
NOT_AVAILABLE = 1


def doctor(arguments: argparse.Namespace) -> int:
    """Return 1 if the default isolation class is not available on this host, or on a node of the cluster."""
    if arguments.cluster is not None:
        return _examine_cluster(arguments.cluster, arguments.json)
    from warmcell.diagnosis.doctor import examine

    with Progress("attacking our own cage"):
        report = examine()
    if arguments.json:
        print_json(
            {"default_available": report.default_available, "rows": [dataclasses.asdict(row) for row in report.rows]}
        )
    else:
        print(table(report.rows))
    if report.default_available:
        return OK
    say_error("the default isolation class does not work on this host", "apply the remedies in the table above")
    return NOT_AVAILABLE


def _examine_cluster(address: str, as_json: bool) -> int:
    from warmcell.diagnosis.cluster import examine_cluster

    with Progress("attacking the cage of each node"):
        reports = examine_cluster(address)
    if as_json:
        print_json({"nodes": [dataclasses.asdict(report) for report in reports]})
    else:
        print("\n\n".join(_node_table(report) for report in reports))
    bad = [report for report in reports if not report.default_available]
    if not bad:
        return OK
    hint = "apply the remedies in the tables above; such nodes get no work or less isolation"
    say_error(f"the default isolation class does not work on {len(bad)} of {len(reports)} nodes", hint)
    return NOT_AVAILABLE


def _node_table(report: NodeReport) -> str:
    state = "works" if report.default_available else "does not work"
    return f"node {report.id[:12]} at {report.address}, {report.cores} processors: {state}\n{table(report.rows)}"


def table(rows: Sequence[Row]) -> str:
    """The rows in aligned columns, each followed by its remedy."""
    cells = [[str(getattr(row, column) or "-") for column in COLUMNS] for row in rows]
    head, *lines = table_lines([name.upper() for name in COLUMNS], *cells)
    remedies = [textwrap.indent(f"\nremedy: {row.remedy}", "    ") if row.remedy else "" for row in rows]
    return "\n".join([head, *map(str.__add__, lines, remedies)])


def bench(arguments: argparse.Namespace) -> int:
    from warmcell.diagnosis.bench import main

    return main(max(2, arguments.rounds), as_json=arguments.json)
