"""LocalChanges: the methods of a `ChangeLayer`, each in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest
from warmcell.sandbox.local.context import SandboxContext

if TYPE_CHECKING:
    from warmcell.changes.layer import ChangeLayer
    from warmcell.changes.model import Change, CommitReport


class LocalChanges:
    def __init__(self, context: SandboxContext) -> None:
        self._context = context

    @property
    def layer(self) -> ChangeLayer:
        self._context.operations.check_open()
        layer = self._context.layer
        if layer is None:
            hint = "make the sandbox with Sandbox(work_dir=..., changes='ask')"
            raise InvalidRequest("changes of this sandbox are not kept apart", field="changes", hint=hint)
        return layer

    async def list(self) -> list[Change]:
        return await self._context.on_disk(self.layer.changes)

    async def patch(self, paths: Sequence[str] | None) -> str:
        layer, wanted = self.layer, _check_paths("paths", paths)
        return await self._context.on_disk(lambda: layer.patch(wanted).decode("utf-8", "replace"))

    async def commit(self, paths: Sequence[str] | None, allow_flagged: Sequence[str], dry_run: bool) -> CommitReport:
        layer, wanted = self.layer, _check_paths("paths", paths)
        allowed = _check_paths("allow_flagged", allow_flagged) or ()
        merged = self._context.workspace.root
        return await self._context.on_disk(lambda: layer.commit(wanted, allowed, dry_run=bool(dry_run), merged=merged))

    async def discard(self, paths: Sequence[str] | None) -> None:
        layer, wanted = self.layer, _check_paths("paths", paths)
        await self._context.on_disk(lambda: layer.discard(wanted, self._context.workspace.root))

    async def keep(self) -> str:
        return await self._context.on_disk(self.layer.keep)


def _check_paths(field: str, paths: Sequence[str] | None) -> tuple[str, ...] | None:
    if paths is None:
        return None
    if isinstance(paths, str):
        raise InvalidRequest("must be a list of paths, not one path", field=field, hint=f"{field}=[{paths!r}]")
    for path in paths:
        if not isinstance(path, str) or "\0" in path:  # lone surrogates are bytes of names that are not UTF-8
            raise InvalidRequest(f"not a path: {path!r}", field=field)
    return tuple(paths)
