"""Cages without one protection, or with one applied late, to show that it matters."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest
from tests.helpers import share_no_zygotes

import warmcell.backends.process.cell_template
import warmcell.pool.manager_process
from warmcell.cage.plan import LaunchPlan
from warmcell.policy.compile import compile_plan
from warmcell.policy.model import SandboxPolicy

Change = Callable[[LaunchPlan], LaunchPlan]


class Weakened:
    """Weakens the plan or the cage of backends that are created afterwards."""

    def __init__(self, cage: Cage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._cage = cage
        self._patch = monkeypatch
        self._copy = tmp_path / "cage-copy"

    def plan(self, change: Change) -> None:
        original = compile_plan
        self._patch.setattr(
            warmcell.backends.process.cell_template,
            "compile_plan",
            lambda *args, **options: change(original(*args, **options)),
        )

    def without(self, **fields: object) -> None:
        self.plan(lambda plan: plan._replace(**fields))  # type: ignore[arg-type]

    def line(self, file: str, old: str, new: str) -> None:
        """Changes one line of the trusted code, in a copy of it."""
        share_no_zygotes(self._patch)
        if not self._copy.exists():
            shutil.copytree(
                warmcell.pool.manager_process.CAGE_DIR, self._copy, ignore=shutil.ignore_patterns("__pycache__")
            )
            self._patch.setattr(warmcell.pool.manager_process, "CAGE_DIR", str(self._copy))
        text = (self._copy / file).read_text()
        assert text.count(old) == 1, f"{file} has changed: look at this test again"
        (self._copy / file).write_text(text.replace(old, new))
        for stale in self._copy.rglob("__pycache__"):
            shutil.rmtree(stale)

    def skip_verification(self) -> None:
        """Removes the check of the finished cage."""
        self.line("verify.py", "    if found:\n        raise CageError", "    if False:\n        raise CageError")

    def run(self, body: str, policy: SandboxPolicy | None = None, **options: Any) -> dict[str, str]:
        limits = {key: options.pop(key) for key in ("open_files", "memory_mb", "disk_mb") if key in options}
        outcome = self._cage.run(guest(body, **options), backend=self._cage.backend(policy), **limits)
        report = outcome.report()
        assert report, outcome
        return report
