"""The shell-spec cases: 95 % of those that pass on the real tools must pass in the toolbox, in each group."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import toolbox_harness as harness

#: Beside the checkout, or where the variable points.
SUITE = Path(os.environ.get("WARMCELL_SHELL_SPEC") or harness.ROOT.parent / "shared" / "suites" / "shell-spec")
GROUPS = ("bash", "awk", "sed", "grep", "jq")
OPTIONAL_TOOLS = ("jq", "rg")
REQUIRED_SHARE = 0.95
DIRECTIVE = re.compile(r"^(exit_code|skip|bash_diff)\s*:?\s*(.*)$")


@dataclass(frozen=True)
class Case:
    """One `### name ... ### end` block."""

    name: str
    script: str
    expected: str
    exit_code: int | None
    counts: bool

    def accepts(self, code: int, output: str, temporary: str = "/tmp") -> bool:
        if output.rstrip("\n") != self.expected.replace("/tmp", temporary).rstrip("\n"):
            return False
        return self.exit_code is None or code == self.exit_code


def parse(path: Path) -> list[Case]:
    cases: list[Case] = []
    name: str | None = None
    parts: dict[str, list[str]] = {}
    directives: dict[str, str] = {}
    where = "script"
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").split("\n"):
        marker = line[4:].strip() if line.startswith("### ") else None
        if name is None:
            if marker:
                name, parts, directives, where = marker, {"script": [], "expect": []}, {}, "script"
            continue
        if marker == "end":
            expected = "\n".join(parts["expect"])
            code = int(directives["exit_code"]) if "exit_code" in directives else None
            counts = not directives.keys() & {"skip", "bash_diff"}
            cases.append(Case(f"{path.name}:{name}", "\n".join(parts["script"]) + "\n", expected, code, counts))
            name = None
        elif marker == "expect":
            where = "expect"
        elif marker and (found := DIRECTIVE.match(marker)):
            directives[found[1]] = found[2]
        else:
            parts[where].append(line)
    return cases


def passes_on_real_tools(case: Case) -> bool:
    """Run real bash with /tmp and /usr/local replaced by private directories, so that cases can run in parallel."""
    with tempfile.TemporaryDirectory(prefix="spec-") as scratch:
        work, temporary, local = Path(scratch, "work"), Path(scratch, "tmp"), Path(scratch, "local")
        for path in (work, temporary, local):
            path.mkdir()
        script = case.script.replace("/tmp", str(temporary)).replace("/usr/local", str(local))
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(work),
            "PWD": str(work),
            "LC_ALL": "C.UTF-8",
            "TMPDIR": str(temporary),
            "TZ": "UTC",
        }
        try:
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=work,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=10,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return case.accepts(done.returncode, done.stdout.decode("utf-8", "surrogateescape"), str(temporary))


def passes_in_toolbox(case: Case) -> bool:
    with tempfile.TemporaryDirectory(prefix="spec-") as scratch:
        mounts = {guest: Path(scratch, guest.replace("/", "_")) for guest in ("/work", "/tmp", "/usr/local")}
        for path in mounts.values():
            path.mkdir()
        outcome = harness.run(["bash", "-c", case.script], mounts, ticks=1000)
        return case.accepts(outcome.code, outcome.text)


@pytest.fixture(scope="module")
def suite() -> Path:
    if not SUITE.is_dir() or shutil.which("bash") is None:
        if harness.MUST_WORK:
            pytest.fail(f"the shell-spec suite or bash is missing ({SUITE.name})")
        pytest.skip("no shell-spec suite beside the checkout")
    return SUITE


def is_comparable(case: Case) -> bool:
    """A case cannot be compared if this host lacks the tool."""
    return not any(re.search(rf"\b{tool}\b", case.script) for tool in OPTIONAL_TOOLS if shutil.which(tool) is None)


@pytest.mark.parametrize("group", GROUPS)
def test_share_of_cases(suite: Path, group: str) -> None:
    cases = [case for path in sorted((suite / group).glob("*.sh")) for case in parse(path) if case.counts]
    cases = [case for case in cases if is_comparable(case)]
    if not cases:
        pytest.skip(f"the real {group} is not installed")
    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 2)) as pool:
        real = list(pool.map(passes_on_real_tools, cases))
        counted = [case for case, good in zip(cases, real, strict=True) if good]
        ours = list(pool.map(passes_in_toolbox, counted))
    failures = [case.name for case, good in zip(counted, ours, strict=True) if not good]
    share = 1 - len(failures) / len(counted)
    print(
        f"{group}: {len(counted) - len(failures)} of {len(counted)} ({share:.1%}); failing: {', '.join(failures) or 'none'}"
    )
    assert len(counted) > len(cases) * 0.8, "too few cases pass on the real tools: are they installed?"
    assert share >= REQUIRED_SHARE, failures
