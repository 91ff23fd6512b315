"""Which tests prove which promise of SECURITY.md. Checked both ways by `tests/test_requirements.py`.

A promise is proved by the attacks that it must withstand (tests marked `attack(id)`), by tests that name it themselves
(`claim(id)`), and by single tests named here. Run this file to see the whole table.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

#: The public attack catalogue. Every id must have at least one test.
ATTACKS = {
    "FS": "01 02 03 05 09 10 12",
    "PR": "01 02 03",
    "KR": "01 02 04 05 06 11 12 15 16",
    "NW": "01 02 03 04 06 07 08",
    "RX": "01 02 04 06 07 08 09 11 12 13 14 15 16",
    "LK": "01 02 03 04 05 06 11",
    "PT": "01 02 03 04 05 06 08 09 10 11 13 15",
    "SS": "01 02 03 06 07 09 11 12 14 15 16 17 19",
    "WS": "01 02 03 04 06 07 10 12 13 14",
    "WA": "01 02 04 05 08 09 10 11 15 17 18",
    # The second and third siege: attacks that once worked against our own cage.
    "S2": " ".join(f"{number:02}" for number in range(1, 41)),
    "S3": " ".join(f"{number:02}" for number in range(1, 28)),
}

#: Attacks without a test. It only shrinks: the change that adds the first test of one removes its id.
NOT_YET: set[str] = set()


class Proof(NamedTuple):
    """Attack ids, and tests by node id (`path::function`, without parameters)."""

    attacks: str = ""
    tests: tuple[str, ...] = ()


REQUIREMENTS: dict[str, Proof] = {
    "WC-FS-1": Proof("FS-01 FS-05 LK-03 S2-15"),
    "WC-FS-2": Proof("FS-02 LK-05 S2-14"),
    "WC-FS-3": Proof("FS-03 FS-12 S2-02 S2-08 S2-23"),
    "WC-FS-4": Proof("FS-10"),
    "WC-FS-5": Proof("PT-08 S2-01"),
    "WC-FS-6": Proof("", ("tests/escape/test_fs_writes.py::test_no_setuid_file_can_be_left_on_the_host",)),
    "WC-FS-7": Proof("S3-14"),
    "WC-FS-8": Proof(),
    "WC-FS-9": Proof(),
    "WC-PR-1": Proof("PR-01 PR-02 KR-04 KR-16 S2-25"),
    "WC-PR-2": Proof("PR-03"),
    "WC-PR-3": Proof("FS-09", ("tests/escape/test_layers.py::test_capabilities",)),
    "WC-KR-1": Proof("KR-01 KR-02 KR-04 KR-05 KR-06 KR-11", ("tests/escape/test_layers.py::test_seccomp",)),
    "WC-KR-2": Proof("KR-15", ("tests/escape/test_layers.py::test_the_spawn_rule",)),
    "WC-KR-3": Proof("", ("tests/escape/test_layers.py::test_a_missing_step_is_noticed_before_the_guest_starts",)),
    "WC-KR-4": Proof("KR-12"),
    "WC-NW-1": Proof("NW-01 NW-02 NW-03 NW-04 NW-06 NW-07"),
    "WC-NW-2": Proof("NW-08"),
    "WC-NW-3": Proof("SS-07 SS-11 SS-12 SS-19 S2-19 S2-22 S2-29"),
    "WC-NW-4": Proof("SS-01 SS-02 SS-03 SS-06 SS-09"),
    "WC-NW-5": Proof(
        "",
        (
            "tests/escape/test_fs_policy_paths.py::test_a_host_socket_inside_an_allowed_path_answers_nobody",
            "tests/escape/test_fs_policy_paths.py::test_a_host_socket_cannot_be_reached_by_a_race",
        ),
    ),
    "WC-NW-6": Proof("S2-32 S2-38"),
    "WC-NW-7": Proof("S2-07 S2-33"),
    "WC-NW-8": Proof("S2-31"),
    "WC-RX-1": Proof("RX-12 RX-15 RX-16"),
    "WC-RX-2": Proof("RX-02 RX-04 S2-06 S3-03"),
    "WC-RX-3": Proof("RX-01 RX-06 RX-08 RX-11 S2-10 S2-12 S2-24"),
    "WC-RX-4": Proof("RX-09"),
    "WC-RX-5": Proof("RX-12 RX-13 RX-14 PT-09 PT-11 S2-13 S2-18 S2-21 S2-27"),
    "WC-RX-6": Proof("S2-20"),
    "WC-RX-7": Proof("S2-05"),
    "WC-RX-8": Proof("S3-02 S3-07"),
    "WC-LK-1": Proof("LK-01 PR-01"),
    "WC-LK-2": Proof("LK-02"),
    "WC-LK-3": Proof("LK-05 LK-06 S2-01 S2-04 S2-09 S2-11 S3-13"),
    "WC-LK-4": Proof("LK-04"),
    "WC-LK-5": Proof("LK-11 S2-17 S2-36 S2-39"),
    "WC-PT-1": Proof("PT-02 PT-03 PT-04 PT-05"),
    "WC-PT-2": Proof("FS-03"),
    "WC-PT-3": Proof("PT-15"),
    "WC-PT-4": Proof("", ("tests/escape/test_landlock_class.py::test_the_class_says_what_it_is",)),
    "WC-PT-5": Proof("PT-06"),
    "WC-PT-6": Proof("S2-16 S2-28", ("tests/escape/test_lk_leaks.py::test_a_report_that_the_guest_forges_stays_data",)),
    "WC-PT-7": Proof("S2-26 S2-27"),
    "WC-PT-8": Proof("S2-30 LK-06"),
    "WC-SV-1": Proof("S3-20 S3-22 S3-23 S3-27"),
    "WC-SV-2": Proof("S3-15 S3-16 S3-17 S3-18 S3-19 S3-21 S3-24"),
    "WC-WS-1": Proof("WS-01 WS-02 WS-03 WS-04 WS-06 WS-10 WS-12 WS-13 WS-14"),
    "WC-WS-2": Proof("WS-07 RX-07 RX-08 S2-03 S2-35"),
    "WC-WA-1": Proof("WA-01 WA-02 WA-04 WA-05 WA-09"),
    "WC-WA-2": Proof("WA-10"),
    "WC-WA-3": Proof("WA-15 WA-17"),
    "WC-WA-4": Proof("WA-17 S2-40"),
    "WC-WA-5": Proof("S2-34 S2-37"),
    "WC-GP-1": Proof("", ("tests/gpu/test_gpu_runs.py::test_only_the_named_device",)),
    "WC-GP-2": Proof("", ("tests/gpu/test_gpu_memory.py::test_a_guest_over_its_limit_is_ended",)),
    "WC-LV-1": Proof("S2-31"),
    "WC-LV-2": Proof("", ("tests/live/test_attacks.py::test_nothing_of_the_callers_environment_is_inside",)),
    "WC-IM-1": Proof(),
    "WC-IM-2": Proof(),
    "WC-IM-3": Proof(),
    "WC-IM-4": Proof(),
    "WC-IM-5": Proof(),
    "WC-ST-1": Proof(),
    "WC-LV-3": Proof("", ("tests/live/test_cage.py::test_the_death_of_an_agent_ends_its_own_cage_only",)),
}


@dataclass
class Marked:
    """What the tests say of themselves."""

    nodes: set[str] = field(default_factory=set)
    attacks: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    claims: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def promises() -> set[str]:
    """The ids in the table of SECURITY.md."""
    return set(re.findall(r"^\| (WC-[A-Z]+-\d+) \|", (ROOT / "SECURITY.md").read_text(), re.MULTILINE))


def catalogue() -> set[str]:
    return {f"{group}-{number}" for group, numbers in ATTACKS.items() for number in numbers.split()}


def read_marks() -> Marked:
    """Read from the sources, so that nothing has to be importable or to run."""
    found = Marked()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        whole = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_named(node, "pytestmark")]
        for name, marks in _tests(tree):
            node = f"{path.relative_to(ROOT)}::{name}"
            found.nodes.add(node)
            for kind, identity in _marks([*whole, *marks]):
                (found.attacks if kind == "attack" else found.claims)[identity].add(node)
    return found


def _is_named(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _tests(tree: ast.AST, prefix: str = "", marks: tuple[ast.expr, ...] = ()) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _tests(node, f"{prefix}{node.name}::", (*marks, *node.decorator_list))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield prefix + node.name, [*marks, *node.decorator_list]


def _marks(expressions: list[ast.expr]) -> Iterator[tuple[str, str]]:
    """Every `...mark.attack("X")` and `...mark.claim("X")`, also inside lists and `pytest.param(marks=...)`."""
    for node in (inner for expression in expressions for inner in ast.walk(expression)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("attack", "claim")
        ):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.func.attr, argument.value


def proofs(found: Marked) -> dict[str, set[str]]:
    """Every test of every promise."""
    return {
        claim: set(proof.tests).union(
            found.claims[claim], *(found.attacks[identity] for identity in proof.attacks.split())
        )
        for claim, proof in REQUIREMENTS.items()
    }


if __name__ == "__main__":
    for claim, nodes in proofs(read_marks()).items():
        print(claim, *sorted(nodes), sep="\n  ")
