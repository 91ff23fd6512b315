"""Programs that the caller named: started outside of cages too, so no guest may have a hand in them."""

from __future__ import annotations

from warmcell.core.errors import PolicyViolation
from warmcell.languages.config import ProcessConfig
from warmcell.policy.places import is_within
from warmcell.policy.resolve import ResolvedPath


def check_programs(config: ProcessConfig, paths: tuple[ResolvedPath, ...] | PolicyViolation) -> None:
    """A program that the caller named is started outside too; it must not be one that guests can change."""
    if isinstance(paths, PolicyViolation) or not any(path.writable for path in paths):
        return
    if not (config.python_path or config.node_path or config.rustc_path or config.preload):
        return
    from warmcell.languages.host_tools import check_out_of_reach

    def is_writable(program: str) -> bool:
        around = [path for path in paths if is_within(program, path.source)]
        return bool(around) and max(around, key=lambda path: len(path.source)).writable

    check_out_of_reach(config, is_writable)
