"""mini-swe-agent: its environment contract, and its agent with a scripted model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.helpers import until

from warmcell.lifetime.portal import portal

pytest.importorskip("minisweagent")
KIND = "warmcell.interfaces.seats.mini_swe_agent.WarmcellEnvironment"


@pytest.fixture
def environment() -> Iterator[Any]:
    from minisweagent.environments import get_environment

    made = get_environment({"environment_class": KIND, "env": {"WORD": "hi"}, "timeout": 20})
    yield made
    made.cleanup()


@pytest.mark.parametrize(
    ("command", "output", "status"),
    [
        ("echo $WORD; echo err >&2", "hi\nerr\n", 0),
        ("[[ a == a ]] && echo 'it''s bash'", "its bash\n", 0),
        ("exit 3", "", 3),
        ("", "", 0),
    ],
)
def test_commands(environment: Any, command: str, output: str, status: int) -> None:
    expected = {"output": output, "returncode": status, "exception_info": ""}
    assert environment.execute({"command": command}) == expected


def test_files_and_background_processes_stay(environment: Any) -> None:
    environment.execute({"command": "mkdir -p d; echo kept > /tmp/f; sleep 60 & echo $! > d/pid"})
    assert environment.execute({"command": "cat /tmp/f; kill -0 $(cat pid) && echo alive"}, cwd="d")["output"] == (
        "kept\nalive\n"
    )


def test_a_timeout_keeps_what_was_printed(environment: Any) -> None:
    for seconds in (1, 5, 25, 125):  # a starved host may not have printed by then
        found = environment.execute({"command": "echo so far; sleep 100000"}, timeout=seconds)
        if found["output"]:
            break
    assert (found["output"], found["returncode"]) == ("so far\n", -1)
    assert "timed out" in found["exception_info"] and found["extra"]["exception_type"] == "ExecutionTimeout"
    assert environment.execute({"command": "echo again"})["output"] == "again\n"


def test_the_end_of_a_task(environment: Any) -> None:
    from minisweagent.exceptions import Submitted

    word = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    with pytest.raises(Submitted) as caught:
        environment.execute({"command": f"echo {word}; echo the patch"})
    assert caught.value.messages[0]["extra"]["submission"] == "the patch\n"
    assert environment.execute({"command": f"echo {word}; exit 1"})["returncode"] == 1


def test_what_templates_and_trajectories_get(environment: Any) -> None:
    assert environment.get_template_vars(more=1) | {"timeout": 20, "system": "Linux", "more": 1} == (
        environment.get_template_vars(more=1)
    )
    config = json.loads(json.dumps(environment.serialize()))["info"]["config"]
    assert config["environment_type"] == KIND and config["environment"]["env"] == {"WORD": "hi"}


def test_the_garbage_collector_may_run_on_the_event_loop(environment: Any) -> None:
    async def collect() -> None:
        environment.__del__()

    portal.call(collect)
    until(lambda: environment.execute({"command": "true"})["returncode"] == -1)
