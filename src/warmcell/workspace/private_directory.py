"""Private directories for what a guest writes, and the sweep that removes those of programs that were killed."""

from __future__ import annotations

from warmcell.lifetime.descriptors import host_failure, is_exhaustion
from warmcell.lifetime.held_directories import HeldDirectory, abandoned, make_held, swept_places
from warmcell.workspace.errors import WorkspaceError
from warmcell.workspace.remove import remove_directory

#: Whether this process has looked already. Once is enough: what it leaves itself is for the next one.
_has_swept = False


class PrivateDirectory:
    """For this user alone. Gone with `close`, and where the program is killed first, with the next one's sweep."""

    def __init__(self, kind: str) -> None:
        sweep_once()
        try:
            self._held: HeldDirectory = make_held(f"warmcell-{kind}-")
        except OSError as error:
            raise host_failure(error, "make a temporary directory") from error
        self.path = self._held.path

    def close(self) -> None:
        """Removes it with all that is in it. May be called twice; in a fork it leaves the original's alone."""
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
            self._held.let_go()  # the descriptor that is missing; if one is not enough, the next start's sweep is
            remove_directory(self.path)


def sweep_once() -> None:
    """Removes what killed programs of this user left, the first time that it is called."""
    global _has_swept
    if not _has_swept:
        _has_swept = True
        for parent, prefixes in swept_places():
            sweep(parent, prefixes)


def sweep(parent: str, prefixes: tuple[str, ...]) -> None:
    for path in abandoned(parent, prefixes):
        try:
            remove_directory(path)
        except (OSError, WorkspaceError):
            continue  # a guest that has not died yet still writes there: the next start finds it again
