"""Private directories for guest files, and the sweep that removes those of killed programs."""

from __future__ import annotations

from warmcell.core.light import Closing
from warmcell.lifetime.descriptors import host_failure, is_exhaustion
from warmcell.lifetime.held_directories import HeldDirectory, create_held_directory, find_abandoned, swept_places
from warmcell.workspace.errors import WorkspaceError
from warmcell.workspace.remove import remove_directory

#: A process sweeps once; its own leftovers are swept by the next one.
_has_swept = False


class PrivateDirectory(Closing):
    """A directory only for this user. `close` removes it; if the program is killed, the next sweep does."""

    def __init__(self, kind: str) -> None:
        sweep_once()
        try:
            self._held: HeldDirectory = create_held_directory(f"warmcell-{kind}-")
        except OSError as error:
            raise host_failure(error, "make a temporary directory") from error
        self.path = self._held.path

    def close(self) -> None:
        """Remove the directory. Idempotent; does nothing in a forked child."""
        try:
            if self._held.is_ours:
                self._remove()
        finally:
            self._held.let_go()

    def _remove(self) -> None:
        try:
            remove_directory(self.path)
        except OSError as error:
            if not is_exhaustion(error):
                raise
            self._held.let_go()  # frees a descriptor; if that is not enough, the next program's sweep removes it
            remove_directory(self.path)


def sweep_once() -> None:
    """Remove leftovers of this user's killed programs, once per process."""
    global _has_swept
    if not _has_swept:
        _has_swept = True
        for parent, prefixes in swept_places():
            sweep(parent, prefixes)


def sweep(parent: str, prefixes: tuple[str, ...]) -> None:
    for path in find_abandoned(parent, prefixes):
        try:
            remove_directory(path)
        except (OSError, WorkspaceError):
            continue  # a dying guest may still write there; the next program's sweep tries again
