"""The manager's end of its zygote: tells it what cells look like, and orders guests."""

from __future__ import annotations

import os

from ..failure import CageError
from ..light import socket
from ..linux import kernel_files
from ..linux.owned import close_all
from ..plan import is_below, plain
from ..wire import FORK_ANSWER, FORK_ORDER, receive_packet, rights_to, send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Sequence, Tuple

    from ..cell import Shape
    from ..zygote.serve import Becoming

_MOST_RECIPES = 32


def is_for_one_worker(order: Dict[str, Any]) -> bool:
    """Whether a command is all that it is for, and a worker of WebAssembly all that it makes."""
    return bool(order.get("packages") and order.get("once"))


class ZygoteLost(Exception):
    """It died: nobody can be forked any more."""


class ZygoteChild:
    """Started at once; `await_ready` raises what was wrong. In a guest's process, `become` is what it is to do."""

    def __init__(self, order: Dict[str, Any], not_for_it: Sequence[int]) -> None:
        #: The one that was not used for longest comes first.
        self._recipes: Dict[Shape, int] = {}
        self._number = 0
        self._is_ready = False
        self.become: Optional[Becoming] = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = _fork_unlike_a_guest()
        if self.pid == 0:
            ours.close()
            close_all(not_for_it)
            from ..zygote.serve import serve  # which we have no use for

            self.become = serve(theirs, order)
            return
        theirs.close()
        self._channel = ours

    def await_ready(self) -> None:
        """Orders may be given before that."""
        if self._is_ready:
            return
        answer, _ = receive_packet(self._channel)
        if "ready" not in answer:
            raise CageError(*answer.get("failed", ("start zygote", 0, "it died")))
        self._is_ready = True

    def teach(self, shape: Shape) -> None:
        """Tells it of the shape, where it was not told: an order of that shape will follow."""
        try:
            self._recipe(shape)
        except (BrokenPipeError, ConnectionResetError):
            raise ZygoteLost from None

    def order(
        self, shape: Shape, may_exec: bool, waits: bool, descriptors: Sequence[int], is_program: bool = False
    ) -> None:
        """Every order has its `answer`, which must be taken before the next."""
        try:
            order = FORK_ORDER.pack(self._recipe(shape), may_exec, waits, is_program)
            self._channel.sendmsg([order], rights_to(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            raise ZygoteLost from None

    def answer(self) -> Tuple[int, bool]:
        """The pid of the new process, a child of ours, and whether its job must come as a list of calls."""
        self.await_ready()
        try:
            answer = self._channel.recv(FORK_ANSWER.size)
        except OSError:
            # Whatever the reason: an answer that was not taken would be taken for the next one's.
            raise ZygoteLost from None
        if not answer:
            raise ZygoteLost
        pid, takes_list = FORK_ANSWER.unpack(answer)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid, takes_list

    def let_go(self) -> None:
        """It ends; who asks it for anything finds that it is lost."""
        self._channel.shutdown(socket.SHUT_RDWR)

    def _recipe(self, shape: Shape) -> int:
        """The number under which it knows the shape. It is told no path of the host: guests are copies of it.

        Nor where toolchains are, which may be other guests': all that the root already has is left out. Who shares the
        host's root knows its own paths anyway, and its keeper looks after what is written to them.
        """
        number = self._recipes.pop(shape, None)
        if number is None:
            self._number = number = self._number % 0xFFFF + 1
            places = [target for target, _ in shape.attached]
            needed = [bind for bind in shape.plan.binds if any(is_below(place, bind.target) for place in places)]
            binds = tuple(bind._replace(source="", identity="") for bind in needed)
            is_caged = shape.plan.isolation == "namespaces"
            watch = shape.plan.watch._replace(disk_paths=()) if is_caged else shape.plan.watch
            plan = shape.plan._replace(binds=binds, watch=watch, symlinks=(), files=())
            lesson = {"learn": number, "plan": plain(plan), "cgroups": shape.cgroups}
            send_packet(self._channel, {**lesson, "attached": shape.attached, "files": shape.files})
        self._recipes[shape] = number
        if len(self._recipes) > _MOST_RECIPES:
            send_packet(self._channel, {"forget": self._recipes.pop(next(iter(self._recipes)))})
        return number


def _fork_unlike_a_guest() -> int:
    """Its pid must not be one that a guest has in its own namespace: OpenSSL tells a fork by nothing else."""
    if os.getpid() == 1:  # the namespace is our own, and so are its numbers
        try:
            kernel_files.write("/proc/sys/kernel/ns_last_pid", "2")
        except OSError:
            pass  # a kernel without CONFIG_CHECKPOINT_RESTORE: the numbers that will not do are passed over
    while True:
        pid = os.fork()
        if pid == 0 and os.getpid() <= 2:
            os._exit(0)
        if pid == 0 or pid > 2:
            return pid
        os.waitpid(pid, 0)
