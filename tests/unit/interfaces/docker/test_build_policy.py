"""What the commands of a build may have: the network and the limits of containers, and nothing else of the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warmcell import Limits, NetworkRule, SandboxPolicy
from warmcell.interfaces.docker.build_routes import BuildRoutes
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.messages import Request

RULES, LIMITS = (NetworkRule("example.com"),), Limits(memory_mb=512)


@pytest.mark.parametrize(("network", "rules"), [("", RULES), ("bridge", RULES), ("none", ())])
async def test_a_build_has_no_more_of_the_policy_than_containers(
    tmp_path: Path, network: str, rules: tuple[NetworkRule, ...]
) -> None:
    """GPUs, tracing and variables of the operator's policy reach no container."""
    ceiling = SandboxPolicy(
        network_rules=RULES,
        allow_process_spawn=True,
        allow_tracing=True,
        env={"TOKEN": "secret"},
        limits=LIMITS,
        gpus=(0,),
    )
    engine = Engine(DockerSettings(str(tmp_path / "socket"), ceiling=ceiling, store=str(tmp_path / "images")))
    try:
        body: Any = None
        request = Request("POST", "/build", {"networkmode": [network]}, {}, body)
        options = BuildRoutes(engine)._read_options(request)
    finally:
        await engine.close()
    expected = SandboxPolicy(network_rules=rules, allow_process_spawn=True, limits=LIMITS)
    assert options["policy"] == expected.to_json()
