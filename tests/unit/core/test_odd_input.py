"""Input that Python itself stumbles over must still become a typed error."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.request_checks import check_wait
from warmcell.core.types import ExecRequest, Language, Limits
from warmcell.policy.gpu import check_gpus
from warmcell.policy.model import AllowedPath, NetworkRule, SandboxPolicy

REFUSED: dict[str, Callable[[], object]] = {
    "timeout of 400 digits": lambda: ExecRequest(Language.PYTHON, "x", 10**400),
    "limit of 5,000 digits": lambda: Limits(memory_mb=10**5000),
    "methods as one text": lambda: NetworkRule("x.org", methods="GET"),  # type: ignore[arg-type]
    "path that is a number": lambda: AllowedPath(5),  # type: ignore[arg-type]
    "paths that are text": lambda: SandboxPolicy(allowed_paths=("/etc",)),  # type: ignore[arg-type]
    "rules that are text": lambda: SandboxPolicy(network_rules=("x.org",)),  # type: ignore[arg-type]
    "limits that are a number": lambda: SandboxPolicy(limits=5),  # type: ignore[arg-type]
    "a device of 5,000 digits": lambda: check_gpus([10**5000]),
    "devices of 5,000 digits": lambda: check_gpus(10**5000),
    "cpus of 400 digits": lambda: SandboxPolicy.from_json('{"limits":{"cpus":1%s}}' % ("0" * 400)),
    "a key twice, wider the second time": lambda: SandboxPolicy.from_json('{"allowNetwork":false,"allowNetwork":true}'),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_odd_input_is_a_typed_error(make: Callable[[], object]) -> None:
    with pytest.raises(SandboxError):
        make()


@pytest.mark.parametrize("value", ["5", None, True, [1], float("nan")], ids=repr)
def test_a_wait_is_a_number(value: object) -> None:
    with pytest.raises(InvalidRequest):
        check_wait(value)


@pytest.mark.parametrize("value", [10**5000, float("inf"), 10**10], ids=["5,000 digits", "infinite", "long"])
def test_a_long_wait_is_one_that_clocks_can_add(value: float) -> None:
    assert check_wait(value) == 1e9
    assert check_wait(-value) == 0


@pytest.mark.parametrize("value", [ExecRequest(Language.PYTHON, "x", 1), SandboxPolicy()], ids=["request", "policy"])
def test_plain_data_crosses_process_boundaries(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value
