"""Whether anybody in a tree of processes has run since it was last looked at. To ask costs a tenth of a look, and most
of the time that a cage stays, nobody has.
"""

from __future__ import annotations

import os
import time

from ..linux import kernel_files
from ..linux.owned import close_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional

#: Asleep, stopped, and ended: whoever leaves one of these states is given a turn, which is counted.
_RESTING = frozenset("STtZ")
#: Of a tree with more threads no accounts are held open: descriptors are for new cells, too.
_MOST_ACCOUNTS = 4


class Stillness:
    """Of one tree. What nobody who runs has changed is as it was; only what a socket holds may grow without them."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._turns: Optional[Dict[str, int]] = None
        #: By open descriptor: the account of a thread that rests, as it was read.
        self._accounts: Dict[int, bytes] = {}
        #: Since when, at the latest, nobody has run.
        self.began = 0.0

    def goes_on(self) -> bool:
        """Whether nobody has run since `is_kept` said so. It asks only of those who were there: where nobody runs,
        nobody begins and no socket is made. One call of the kernel for each, where `is_kept` takes twenty.
        """
        try:
            return bool(self._accounts) and all(
                os.pread(descriptor, 256, 0) == said for descriptor, said in self._accounts.items()
            )
        except OSError:  # it has ended
            return False

    def is_kept(self, pids: List[int]) -> bool:
        """Since the last time that this was asked. Whoever is told no looks, and asks again before the next look."""
        now = time.monotonic()
        before, self._turns = self._turns, self._turns_of(pids)
        is_kept = self._turns is not None and self._turns == before
        self.close()
        if not is_kept:
            self.began = now
        elif self._turns is not None and len(self._turns) <= _MOST_ACCOUNTS:
            self._hold_accounts(self._turns)
        return is_kept

    def close(self) -> None:
        accounts, self._accounts = self._accounts, {}
        close_all(accounts)

    def _hold_accounts(self, turns: Dict[str, int]) -> None:
        """Each was at rest after so many turns: an account that says as many is of one who still is."""
        try:
            for base in turns:
                descriptor = os.open(f"{base}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                self._accounts[descriptor] = b""
                self._accounts[descriptor] = os.pread(descriptor, 256, 0)
        except OSError:
            self.close()
        if [said.split()[2:] for said in self._accounts.values()] != [[b"%d" % number] for number in turns.values()]:
            self.close()

    def _turns_of(self, pids: List[int]) -> Optional[Dict[str, int]]:
        """How often each thread was given a processor; None where one has it now, or where it cannot be known."""
        try:
            if not pids or self._has_sockets(pids[0]):
                return None
            turns = {base: _turns(base) for pid in pids for base in self._threads(pid)}
        except (OSError, ValueError, IndexError):  # it has just ended, or the kernel keeps no such account
            return None
        return turns if all(turns.values()) else None

    def _has_sockets(self, pid: int) -> bool:
        first = kernel_files.read_short(f"{self._proc}/{pid}/net/sockstat").split("\n", 1)[0]
        return first != "sockets: used 0"

    def _threads(self, pid: int) -> Iterator[str]:
        base = f"{self._proc}/{pid}"
        fields = _fields(base)
        if fields[17] != "1":
            for thread in os.listdir(f"{base}/task"):
                yield f"{base}/task/{thread}"
        else:
            yield base


def _turns(base: str) -> int:
    """0: it has a processor, or waits for one. The state comes last: who runs afterwards is given another turn."""
    turns = int(kernel_files.read_short(f"{base}/schedstat").split()[2])
    return turns if _fields(base)[0] in _RESTING else 0


def _fields(base: str) -> List[str]:
    """From the state on."""
    return kernel_files.read_short(f"{base}/stat").rpartition(")")[2].split()
