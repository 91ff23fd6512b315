"""The files of sandboxes and snapshots below `--state`: plain where they are used, or an encrypted copy of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

from warmcell.interfaces.serve.sealed_files import SealedFiles
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Root


class State(Protocol):
    """What homes need to know of the `SavedState` that they are in."""

    path: str
    is_closing: bool


class StateHome:
    """A directory below the state. `close` removes it, unless the server is stopping or `is_kept` is set.

    `is_kept`: its sandbox is being restored. If that fails, the files stay for the next server.
    """

    def __init__(self, state: State, name: str) -> None:
        self._state, self.name, self.is_kept = state, name, False
        self.path = os.path.join(state.path, "homes", name)
        #: Of encrypted files: what the record of the sandbox names, and what could not be saved.
        self.version: str | None = None
        self.skipped: tuple[str, ...] = ()

    @property
    def is_removed_at_close(self) -> bool:
        return not self._state.is_closing and not self.is_kept

    def save(self) -> None:
        """Plain files are where they belong already."""

    def drop_former_versions(self) -> None:
        """After the record that names the version is on disk."""

    def copy_to(self, target: Root) -> None:
        with Root(self.path) as source:
            copy_tree(source, target)

    def close(self) -> None:
        if self.is_removed_at_close:
            remove_directory(self.path)


class EncryptedHome(StateHome):
    """`path` is a temporary directory with the plain files, as long as the sandbox is in this server.

    What is below the state is written by `save`.
    """

    def __init__(self, state: State, name: str, sealed: SealedFiles) -> None:
        super().__init__(state, name)
        self._sealed, self._private = sealed, PrivateDirectory("work")
        self.path = self._private.path

    def load(self, version: str) -> None:
        with Root(self.path) as target:
            self._sealed.load(target, version)
        self.version = version

    def save(self) -> None:
        made = self._sealed.save(self.path)
        self.version, self.skipped = str(made), made.skipped

    def drop_former_versions(self) -> None:
        if self.version is not None:
            self._sealed.keep_only(self.version)

    def close(self) -> None:
        try:
            self._private.close()
        finally:
            if self.is_removed_at_close:
                self._sealed.remove()


class EncryptedSnapshot(StateHome):
    """Files that no sandbox uses: there is no plain copy of them."""

    def __init__(self, state: State, name: str, sealed: SealedFiles) -> None:
        super().__init__(state, name)
        self._sealed = sealed

    def write(self, directory: str) -> None:
        self._sealed.save(directory)

    def copy_to(self, target: Root) -> None:
        self._sealed.load(target)


class LoadedPackages(NamedTuple):
    """A directory to copy packages from."""

    path: str
    close: Callable[[], None] = lambda: None


Home = PrivateDirectory | StateHome
