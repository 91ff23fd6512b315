"""Pure module: what an archive may hold and how much of it. Names and numbers in, members or a refusal out."""

from __future__ import annotations

from dataclasses import dataclass

from warmcell.core.errors import PathTraversal
from warmcell.core.types import MIB
from warmcell.workspace.errors import ArchiveRejected
from warmcell.workspace.name_tree import NameTree
from warmcell.workspace.names import Parts, shown, split_relative

_SET_ID_BITS = 0o6000


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How large an archive may be. `ratio` is content to archive size; it counts once the content passes 16 MiB.

    `entries` counts headers, and files and directories with those that are only implied by the names of others.
    """

    entries: int = 10_000
    total_bytes: int = 256 * MIB
    ratio: int = 200
    ratio_from_bytes: int = 16 * MIB

    @property
    def largest_input(self) -> int:
        """Archives add a header and padding per entry to what they hold."""
        return self.total_bytes + self.entries * 2048 + MIB

    def check_expansion(self, content: int, compressed: int, *, overhead: bool = False) -> None:
        """Refuses a bomb while it is being unpacked, not afterwards."""
        largest = self.largest_input if overhead else self.total_bytes
        if content > largest:
            raise ArchiveRejected(f"the archive holds more than {largest} bytes")
        if content > self.ratio_from_bytes and content > self.ratio * max(compressed, 1):
            raise ArchiveRejected(f"the archive expands to more than {self.ratio} times its size")


@dataclass(frozen=True, slots=True)
class Member:
    """One file or directory of an archive; its content lies at `offset` of the archive's content file."""

    parts: Parts
    is_dir: bool
    is_executable: bool
    size: int
    offset: int


class MemberList:
    """Collects members, refusing what no archive may hold. Both readers go through it, so both have the same rules."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self._tree: NameTree[Member] = NameTree()
        self._headers = 0
        self._total = 0

    def count_entry(self) -> None:
        """To be called for every header, also for those that make no member: headers alone can be a bomb."""
        self._headers += 1
        if self._headers > self._limits.entries:
            raise ArchiveRejected(f"the archive has more than {self._limits.entries} entries")

    def add(self, name: str, *, is_dir: bool, mode: int, size: int, offset: int) -> None:
        parts = _checked_name(name)
        if mode & _SET_ID_BITS:
            raise ArchiveRejected(f"{shown(name)!r} has a set-id bit")
        if not parts and not is_dir:
            raise ArchiveRejected(f"{shown(name)!r} names the workspace itself")
        self._total += size
        if self._total > self._limits.total_bytes:
            raise ArchiveRejected(f"the archive holds more than {self._limits.total_bytes} bytes")
        if parts:
            self._place(name, Member(parts, is_dir, bool(mode & 0o100), size, offset))

    def _place(self, name: str, member: Member) -> None:
        *above, node = self._tree.path_to(member.parts)
        if self._tree.size > self._limits.entries:
            raise ArchiveRejected(f"the archive has more than {self._limits.entries} files and directories")
        if any(other.content is not None and not other.content.is_dir for other in above):
            raise ArchiveRejected(f"{shown(name)!r} lies inside of a member that is a file")
        known = node.content
        if (known is not None and not (known.is_dir and member.is_dir)) or (node.children and not member.is_dir):
            raise ArchiveRejected(f"{shown(name)!r} is there twice")
        node.content = node.content or member

    @property
    def members(self) -> tuple[Member, ...]:
        """In the order of a tree: what lies together is together."""
        return tuple(self._tree.in_order())


def _checked_name(name: str) -> Parts:
    try:
        return split_relative(name)
    except PathTraversal as error:
        raise ArchiveRejected(f"bad member name: {error.message}") from None
