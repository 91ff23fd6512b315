"""Inspect's own checks of a sandbox environment, and a task with a scripted model."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from warmcell.interfaces.seats.inspect_ai import WarmcellSandboxEnvironment

#: Refused with their own error for it, which their check does not know.
KNOWN = {"test_exec_as_user": "a sandbox has one user"}


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.node.originalname in KNOWN:
        request.applymarker(pytest.mark.xfail(reason=KNOWN[request.node.originalname], strict=True))
    made = await WarmcellSandboxEnvironment.sample_init("task", None, {})
    yield made["default"]
    await WarmcellSandboxEnvironment.sample_cleanup("task", None, made, False)


def test_a_task_is_run_and_scored_in_it() -> None:
    """By its name: the entry point is found. The solver stands for a model, which would ask for a tokenizer online."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import includes
    from inspect_ai.solver import Generate, TaskState, solver
    from inspect_ai.util import sandbox

    @solver
    def scripted() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            told = await sandbox().exec(["sh", "-c", "cat given.txt; pwd"])
            state.output = ModelOutput.from_content("scripted", told.stdout)
            return state

        return solve

    samples = [Sample(input="what is in given.txt?", target="42/work", files={"given.txt": "42"})]
    task = Task(dataset=samples, solver=scripted(), scorer=includes(), sandbox="warmcell")
    (log,) = eval(task, model="mockllm/model", display="none", log_format="json", log_dir=tempfile.mkdtemp())
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1
