"""Checks the programs that the configuration names: they also run outside of cages, so guests must not change them."""

from __future__ import annotations

from warmcell.core.errors import PolicyViolation
from warmcell.languages.config import ProcessConfig
from warmcell.policy.places import is_within
from warmcell.policy.resolve import ResolvedPath


def check_programs(config: ProcessConfig, paths: tuple[ResolvedPath, ...] | PolicyViolation) -> None:
    """Refuses a configured program that a guest could overwrite."""
    if isinstance(paths, PolicyViolation) or not any(path.writable for path in paths):
        return
    if not (config.python_path or config.node_path or config.rustc_path or config.preload):
        return
    from warmcell.languages.host_tools import check_out_of_reach

    def is_writable(program: str) -> bool:
        around = [path for path in paths if is_within(program, path.source)]
        return bool(around) and max(around, key=lambda path: len(path.source)).writable

    check_out_of_reach(config, is_writable)
