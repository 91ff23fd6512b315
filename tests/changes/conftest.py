"""A directory of the host, and sandboxes whose changes are kept apart from it, by an overlay and by a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import is_root

from warmcell import Sandbox

OVERLAY, COPY = "overlay", "copy"
Open = Callable[..., Sandbox]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "warmcell" / "changes"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "src").mkdir(parents=True)
    (made / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\nsix\n")
    (made / "src" / "b.py").write_text("print('b')\n")
    (made / "src" / "c.py").write_text("print('c')\n")
    return made


@pytest.fixture
def open_sandbox(directory: Path) -> Iterator[Open]:
    """Opens sandboxes that are closed after the test."""
    with ExitStack() as cleanup:

        def open_one(**settings: Any) -> Sandbox:
            settings = {"work_dir": directory, "work_path": "host", "changes": "ask", **settings}
            return cleanup.enter_context(Sandbox(**settings))

        yield open_one


@pytest.fixture(params=[OVERLAY, COPY])
def sandbox(request: pytest.FixtureRequest, open_sandbox: Open, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """One by each mechanism. Guests of root have ids of their own, and share no overlay."""
    if request.param == COPY:
        monkeypatch.setattr("warmcell.changes.layer.is_root_of_host", lambda: True)
    elif is_root():
        pytest.skip("root has no overlays")
    made = open_sandbox()
    assert made.changes_mechanism.split()[0] == request.param
    return made
