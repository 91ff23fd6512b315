"""Rules for the members of an archive. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from warmcell.core.errors import PathTraversal
from warmcell.core.types import MIB
from warmcell.workspace.errors import ArchiveRejected
from warmcell.workspace.name_tree import NameTree
from warmcell.workspace.names import Parts, display_path, split_relative

_SET_ID_BITS = 0o6000


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits on an archive. `ratio` is content to archive size, checked from `ratio_from_bytes` on.

    `entries` bounds the headers, and also the files and directories, including directories implied by other names.
    """

    entries: int = 10_000
    total_bytes: int = 256 * MIB
    ratio: int = 200
    ratio_from_bytes: int = 16 * MIB

    @property
    def largest_input(self) -> int:
        """The content plus a header and padding per entry."""
        return self.total_bytes + self.entries * 2048 + MIB

    def check_expansion(self, content: int, compressed: int, *, overhead: bool = False) -> None:
        """Refuse a decompression bomb. Called while unpacking."""
        largest = self.largest_input if overhead else self.total_bytes
        if content > largest:
            raise ArchiveRejected(f"the archive contains more than {largest} bytes")
        if content > self.ratio_from_bytes and content > self.ratio * max(compressed, 1):
            raise ArchiveRejected(f"the archive expands to more than {self.ratio} times its size")


@dataclass(frozen=True, slots=True)
class Member:
    """One file or directory of an archive. Its content is at `offset` of the archive's content file."""

    parts: Parts
    is_dir: bool
    is_executable: bool
    size: int
    offset: int


class MemberList:
    """Collects members and refuses forbidden ones. Used by both readers, so that the same rules apply."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self._tree: NameTree[Member] = NameTree()
        self._headers = 0
        self._total = 0

    def count_entry(self) -> None:
        """Count a header. Called for every header, since headers without members can be a bomb too."""
        self._headers += 1
        if self._headers > self._limits.entries:
            raise ArchiveRejected(f"the archive has more than {self._limits.entries} entries")

    def add(self, name: str, *, is_dir: bool, mode: int, size: int, offset: int) -> None:
        parts = _check_name(name)
        if mode & _SET_ID_BITS:
            raise ArchiveRejected(f"{display_path(name)!r} has a set-id bit")
        if not parts and not is_dir:
            raise ArchiveRejected(f"{display_path(name)!r} names the workspace itself")
        self._total += size
        if self._total > self._limits.total_bytes:
            raise ArchiveRejected(f"the archive contains more than {self._limits.total_bytes} bytes")
        if parts:
            self._place(name, Member(parts, is_dir, bool(mode & 0o100), size, offset))

    def _place(self, name: str, member: Member) -> None:
        *above, node = self._tree.path_to(member.parts)
        if self._tree.size > self._limits.entries:
            raise ArchiveRejected(f"the archive has more than {self._limits.entries} files and directories")
        if any(other.content is not None and not other.content.is_dir for other in above):
            raise ArchiveRejected(f"{display_path(name)!r} is inside a member that is a file")
        known = node.content
        if (known is not None and not (known.is_dir and member.is_dir)) or (node.children and not member.is_dir):
            raise ArchiveRejected(f"{display_path(name)!r} occurs twice")
        node.content = node.content or member

    @property
    def members(self) -> tuple[Member, ...]:
        """All members in depth-first order."""
        return tuple(self._tree.in_order())


def _check_name(name: str) -> Parts:
    try:
        return split_relative(name)
    except PathTraversal as error:
        raise ArchiveRejected(f"bad member name: {error.message}") from None
