"""Cells whose init is a keeper: the order in which it and its guest come to be."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.escape.weakened import Weakened

from warmcell.core.errors import EnforcerFailed
from warmcell.policy.builder import SandboxPolicyBuilder


@pytest.mark.claim("WC-PR-1")
def test_a_late_keeper_is_waited_for(weakened: Weakened, tmp_path: Path) -> None:
    """The guest checks that it cannot look into its keeper, which may not have had its turn of the processor yet."""
    policy = SandboxPolicyBuilder().allow_read(tmp_path).build()
    weakened.line("keeper/start.py", "        recipe.settle", "        __import__('time').sleep(0.1); recipe.settle")
    for _ in range(3):
        assert weakened.run("attempt('ran', lambda: None)", policy) == {"ran": "ok:None"}


@pytest.mark.claim("WC-PR-1")
def test_a_keeper_that_dies_early_is_told_of(weakened: Weakened, tmp_path: Path) -> None:
    policy = SandboxPolicyBuilder().allow_read(tmp_path).build()
    weakened.line("keeper/start.py", "        recipe.settle(kit.plan)", "        raise OSError(12, 'no memory')")
    with pytest.raises(EnforcerFailed, match="start guest"):
        weakened.run("attempt('ran', lambda: None)", policy)


@pytest.mark.claim("WC-PR-1")
@pytest.mark.attack("S2-25")
def test_a_keeper_outlives_every_signal(weakened: Weakened, tmp_path: Path) -> None:
    """Where Landlock knows nothing of signals, only its being pid 1 and without handlers protects it."""
    policy = SandboxPolicyBuilder().allow_read(tmp_path).build()
    weakened.without(landlock=())
    body = """
        import signal, time
        for number in signal.valid_signals():
            attempt(number, lambda: os.kill(1, number))
        time.sleep(0.3)
        attempt('there', lambda: None)
        """
    assert weakened.run(body, policy)["there"] == "ok:None"
