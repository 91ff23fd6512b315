"""Markers, profiles and the import path that all tests share."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
for entry in (ROOT, ROOT / "tests"):
    if str(entry) not in sys.path:
        sys.path.insert(0, str(entry))

from tests.helpers import FEATURES, is_root, require  # noqa: E402

# A loaded machine must not turn a property into a wall-clock test.
settings.register_profile("warmcell", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("warmcell")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and not is_root():
        pytest.skip("for root alone")
    for marker in item.iter_markers("needs"):
        for feature in marker.args:
            if feature not in FEATURES:
                pytest.fail(f"unknown feature {feature!r}; add it to FEATURES in tests/helpers.py")
            require(FEATURES[feature](), f"this host has no {feature}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """One failing test must not end the whole run: Python 3.11.2 cannot parse in two threads, and tracebacks parse."""
    try:
        return (yield)
    except SystemError:  # "AST constructor recursion depth mismatch"; fixed in 3.11.5
        item.config.option.tbstyle = "native"
        return pytest.TestReport.from_item_and_call(item, call)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout that the tests run from."""
    return ROOT
