"""A coding agent on a real directory: it works on a layer above the files, and you review before anything is written.

    python examples/coding_agent.py [--repository DIR] [--commit]

`ask_model` stands for a model: it returns the next command, and sees what the last one printed. The guest sees the
directory as it is; its writes go to a private layer until `commit`. Without `--commit` the changes are shown and
discarded. Files that would make your machine run something later, such as git hooks, are never committed unnamed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Generator
from pathlib import Path

from warmcell import Sandbox

BUGGY = "def mean(values):\n    return sum(values) / (len(values) + 1)\n"
TEST = "from stats import mean\nassert mean([2, 4]) == 3, mean([2, 4])\nprint('passed')\n"
MEND = "sed -i 's/(len(values) + 1)/len(values)/' stats.py"
HOOK = "mkdir -p .git/hooks && echo 'echo a surprise' > .git/hooks/pre-commit"


def ask_model() -> Generator[str, str, None]:
    seen = yield "python3 -B test_stats.py"
    if "AssertionError" in seen:
        seen = yield MEND
    seen = yield HOOK  # which a model may do, for good reasons or bad ones
    seen = yield "python3 -B test_stats.py"


def work(sandbox: Sandbox) -> None:
    model = ask_model()
    command = next(model)
    while True:
        result = sandbox.sh(command)
        last = (result.stdout + result.stderr).strip().splitlines()[-1:]
        print(f"$ {command}", *last, sep="\n  ")
        try:
            command = model.send(result.stdout + result.stderr)
        except StopIteration:
            return


def main(repository: Path, is_committed: bool) -> None:
    with Sandbox(work_dir=str(repository), work_path="host", changes="ask") as sandbox:
        work(sandbox)
        for change in sandbox.changes():
            print(f"{change.kind}: {change.path}", f"({change.flag_reason})" if change.is_flagged else "")
        print(sandbox.changes_patch(["stats.py"]), end="")
        if not is_committed:
            sandbox.discard()
            return
        report = sandbox.commit()
        print("committed:", ", ".join(report.committed))
        print("left out:", ", ".join(report.skipped))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Lets an agent work on a directory, with review.")
    parser.add_argument("--repository", type=Path)
    parser.add_argument("--commit", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = chosen.repository or Path(scratch)
        if chosen.repository is None:
            Path(place, "stats.py").write_text(BUGGY)
            Path(place, "test_stats.py").write_text(TEST)
        main(place, chosen.commit)
        print("on disk:", Path(place, "stats.py").read_text().splitlines()[-1].strip())
