"""Tests of E2B's code interpreter in the names that its SDK has today. Run by scripts/test-e2b.

    python e2b_interpreter_today.py SUITE TARGET    writes TARGET/tests; prints how many files had to be changed

No package carries them, and of some only a version could be found that is older than the SDK: what was `notebook.exec_cell`
is `run_code`, and graphs became charts. Nothing else of a test is changed, and tests in today's names are copied.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

#: Kernels that were objects of their own; the tests of contexts ask the same.
GONE = ("test_kernels.py", "test_async_kernels.py")
NAMES = (
    (r"\b(Async)?CodeInterpreter\b", r"\1Sandbox"),
    (r"(?<![\w.])Sandbox\(", "Sandbox.create("),
    (r"\.notebook\.exec_cell\(", ".run_code("),
    (r"\be2b_code_interpreter\.graphs\b", "e2b_code_interpreter.charts"),
    (r"\bSUPERGRAPH\b", "SUPERCHART"),
    (r"\b([A-Z]\w*)?Graph(Type)?\b", r"\1Chart\2"),
    (r"(?<=\])\.graph\b", ".chart"),
)
#: A test, to the beginning of the next.
TEST = re.compile(r"^(?:async )?def .*?(?=^(?:async def|def|@|\Z))", re.MULTILINE | re.DOTALL)


def in_todays_names(text: str) -> str:
    for old, new in NAMES:
        text = re.sub(old, new, text)
    return TEST.sub(lambda test: _with_its_fixture(test[0]), text)


def _with_its_fixture(test: str) -> str:
    """There was one fixture for both, of either kind."""
    return re.sub(r"\bsandbox\b", "async_sandbox", test) if re.search(r"\(sandbox: AsyncSandbox", test) else test


def main(suite: Path, target: Path) -> None:
    copied = changed = 0
    for source in sorted(suite.glob("tests/**/*.py")):
        if source.name in GONE:
            continue
        text = source.read_text()
        written = in_todays_names(text)
        place = target / source.relative_to(suite)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(written)
        copied, changed = copied + (written == text), changed + (written != text)
    print(f"{copied} files as they are, {changed} in today's names")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
