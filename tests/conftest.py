"""Markers, time limits, profiles and the import path that all tests share."""

from __future__ import annotations

import gc
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

from tests.helpers import FEATURES, MUST_WORK, is_root, require, restore_signals  # noqa: E402

# A loaded machine must not turn a property into a wall-clock test.
settings.register_profile("warmcell", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("warmcell")


#: For a test with its fixtures, where it has no `timeout` marker of its own. A test that hangs reaches it, a slow one does not.
TIME_LIMIT = 300


def pytest_configure(config: pytest.Config) -> None:
    restore_signals()
    if MUST_WORK and not config.pluginmanager.has_plugin("timeout"):
        raise pytest.UsageError("pytest-timeout is not installed: pip install -e '.[test]'")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("timeout", None) is not None:  # the command line decides
        return
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME_LIMIT, method="signal"))


def pytest_collection_finish() -> None:
    """What was collected stays until the end. Tests that look for leaks collect garbage twice each, which is slow
    with the objects of ten thousand tests to look at.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and not is_root():
        pytest.skip("only for root")
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
