"""What `/run_code` answers when a run fails through no fault of the program."""

from __future__ import annotations

import json

import pytest

from warmcell.core.errors import BackendBusy, BackendUnavailable, ExecutionFailed, InvalidRequest
from warmcell.interfaces.serve.fusion import fusion_refusal
from warmcell.interfaces.serve.responses import HttpError


@pytest.mark.parametrize(
    "error", [BackendBusy(8), ExecutionFailed("this host is overloaded"), HttpError(503, "no worker")], ids=repr
)
def test_a_failure_that_may_pass_is_one_that_clients_retry(error: Exception) -> None:
    answer = fusion_refusal(error)
    assert answer.status_code == 504 and answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("error", [BackendUnavailable("no python3"), HttpError(500, "a mistake")], ids=repr)
def test_a_failure_that_will_not_pass_is_not_the_programs(error: Exception) -> None:
    answer = fusion_refusal(error)
    assert answer.status_code == 200 and json.loads(bytes(answer.body))["status"] == "SandboxError"


def test_a_bad_request_is_the_callers() -> None:
    assert fusion_refusal(InvalidRequest("unknown language 'x'")).status_code == 422
