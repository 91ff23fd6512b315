"""The `python3` command inside the component. Imported once, before the snapshot; `run` is called once per instance.

Nothing of the standard library can be loaded from files later, so everything importable is imported here.
"""

from __future__ import annotations

import atexit
import gc
import logging
import sys

import preload

preload.import_standard_library()

import command  # noqa: E402
import event_loop  # noqa: E402
import wit_world  # noqa: E402


class WitWorld(wit_world.WitWorld):
    def run(self, argv: list[str], env: list[tuple[str, str]], cwd: str, seed: bytes) -> int:
        return command.main(argv, dict(env), cwd, bytes(seed))


event_loop.install()
sys.modules.pop("__main__", None)
# What a run would have to free or call, page by page: listings of the build machine's directories, exit handlers.
sys.path_importer_cache.clear()
atexit._clear()
atexit.register(logging.shutdown)
# A collection during a run must not walk, and so copy, the pages of everything above.
gc.collect()
gc.freeze()
