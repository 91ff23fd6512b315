"""Evaluates a model on problems in HumanEval's format, with pass@k.

    python examples/evaluation.py [--problems 164] [--samples 4] [--out verdicts.jsonl]

The problems and the "model" are generated here: its first sample of every third problem is wrong. In real use the two
iterables are files of JSON lines, and `warmcell eval TASKS.jsonl SAMPLES.jsonl --report report.html` does all of this.
Interrupt it and start it again with the same --out: samples that have a verdict are not judged again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warmcell import evaluate


def problems(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "task_id": f"Add/{number}",
            "prompt": f'def add_{number}(x):\n    """Add {number} to x."""\n',
            "entry_point": f"add_{number}",
            "test": f"def check(f):\n    assert [f(1), f(2)] == [{number + 1}, {number + 2}]\n",
        }


def ask_model(count: int, samples: int) -> Iterator[dict[str, str]]:
    for number in range(count):
        for attempt in range(samples):
            is_wrong = attempt == 0 and number % 3 == 0
            answer = "x" if is_wrong else f"x + {number}"
            yield {"task_id": f"Add/{number}", "completion": f"    return {answer}\n"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluates a model with pass@k.")
    parser.add_argument("--problems", type=int, default=164)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = chosen.out or Path(scratch, "verdicts.jsonl")
        summary = evaluate(problems(chosen.problems), ask_model(chosen.problems, chosen.samples), out=out)
    print("verdicts:", dict(sorted(summary.counts.items())))
    for k in (1, chosen.samples):
        print(f"pass@{k}: {summary.pass_at_k(k):.3f}")


if __name__ == "__main__":
    main()
