"""The manager's end of its zygote: sends shapes of cells, and orders forks."""

from __future__ import annotations

import os

from ..failure import CageError
from ..fast_imports import socket
from ..linux import kernel_files
from ..linux.descriptors import close_all, make_pair
from ..plan import Watch, is_below, to_json
from ..wire import FORK_ANSWER, FORK_ORDER, descriptor_rights, receive_packet, send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Sequence, Tuple

    from ..cell_shape import CellShape
    from ..zygote.loop import GuestMain

_MOST_RECIPES = 32


def is_for_one_worker(order: Dict[str, Any]) -> bool:
    """Whether the manager serves a single command, and its only guest is a WebAssembly worker."""
    return bool(order.get("packages") and order.get("once"))


class ZygoteLost(Exception):
    """The zygote died, so no guest can be forked."""


class ZygoteHandle:
    """Starts the zygote. In a guest's process, `become` is the guest's function."""

    def __init__(self, order: Dict[str, Any], not_for_it: Sequence[int]) -> None:
        #: The least recently used comes first.
        self._recipes: Dict[CellShape, int] = {}
        self._number = 0
        self._is_ready = False
        #: The zygote that this one is a twin of.
        self._original: Optional[ZygoteHandle] = None
        self.become: Optional[GuestMain] = None
        ours, theirs = make_pair(socket.SOCK_SEQPACKET)
        self.pid = _fork_unlike_a_guest()
        if self.pid == 0:
            ours.close()
            close_all(not_for_it)
            from ..zygote.loop import serve  # which the manager does not need

            self.become = serve(theirs, order)
            return
        theirs.close()
        self._channel = ours

    def await_ready(self) -> None:
        """Wait for the zygote, or raise its failure. Orders may be sent before."""
        if self._original is not None:
            self._original.await_ready()
            return
        if self._is_ready:
            return
        answer, _ = receive_packet(self._channel)
        if "ready" not in answer:
            raise CageError(*answer.get("failed", ("start zygote", 0, "it died")))
        self._is_ready = True

    def fork_twin(self) -> ZygoteHandle:
        """Fork the zygote. The twin has the same shapes. Orders may be sent before it has started."""
        ours, theirs = make_pair(socket.SOCK_SEQPACKET)
        try:
            send_packet(self._channel, {"twin": True}, [theirs.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            ours.close()
            raise ZygoteLost from None
        finally:
            theirs.close()
        twin = ZygoteHandle.__new__(ZygoteHandle)
        twin._recipes, twin._number, twin._channel = dict(self._recipes), self._number, ours
        twin._original, twin.become = self, None
        return twin

    def send_shape(self, shape: CellShape) -> None:
        """Send the shape if it is new, before an order for it."""
        try:
            self._recipe(shape)
        except (BrokenPipeError, ConnectionResetError):
            raise ZygoteLost from None

    def order(
        self, shape: CellShape, may_exec: bool, waits: bool, descriptors: Sequence[int], is_program: bool = False
    ) -> None:
        """Order a fork. Its `answer` must be read before the next order."""
        try:
            order = FORK_ORDER.pack(self._recipe(shape), may_exec, waits, is_program)
            self._channel.sendmsg([order], descriptor_rights(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            raise ZygoteLost from None

    def answer(self) -> Tuple[int, bool, bool]:
        """The pid of the new process, our child; whether its job must be a call list; and whether it has the modules of
        live cages.
        """
        self.await_ready()
        try:
            answer = self._channel.recv(FORK_ANSWER.size)
        except OSError:
            # Always: an unread answer would be mistaken for that to the next order.
            raise ZygoteLost from None
        if not answer:
            raise ZygoteLost
        pid, takes_list, has_live_modules = FORK_ANSWER.unpack(answer)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid, takes_list, has_live_modules

    def let_go(self) -> None:
        """Make the zygote exit; later orders raise `ZygoteLost`."""
        self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Make a twin exit; its guests continue."""
        self._channel.close()

    def _recipe(self, shape: CellShape) -> int:
        """The zygote's number for the shape, which is sent without host paths: guests are copies of its memory.

        Binds that are part of the shared root, such as toolchains, are left out too. Guests that share the host's root
        know their paths anyway, and their keeper watches what is written to them.
        """
        number = self._recipes.pop(shape, None)
        if number is None:
            self._number = number = self._number % 0xFFFF + 1
            places = [target for target, _ in shape.attached]
            needed = [bind for bind in shape.plan.binds if any(is_below(place, bind.target) for place in places)]
            binds = tuple(bind._replace(source="", identity="") for bind in needed)
            is_caged = shape.plan.isolation == "namespaces"
            # The filter depends on whether memory is watched; guests need not inherit the limit.
            watch = Watch(memory_bytes=min(1, shape.plan.watch.memory_bytes)) if is_caged else shape.plan.watch
            files = shape.plan.files if shape.plan.layers else ()  # an image's root is the guest's own
            plan = shape.plan._replace(binds=binds, watch=watch, symlinks=(), files=files)
            message = {"learn": number, "plan": to_json(plan), "cgroups": shape.cgroups}
            send_packet(self._channel, {**message, "attached": shape.attached, "files": shape.files})
        self._recipes[shape] = number
        if len(self._recipes) > _MOST_RECIPES:
            send_packet(self._channel, {"forget": self._recipes.pop(next(iter(self._recipes)))})
        return number


def _fork_unlike_a_guest() -> int:
    """Fork with a pid that no guest has in its own namespace: OpenSSL detects forks by the pid alone."""
    if os.getpid() == 1:  # in our own pid namespace
        try:
            kernel_files.write("/proc/sys/kernel/ns_last_pid", "2")
        except OSError:
            pass  # a kernel without CONFIG_CHECKPOINT_RESTORE: the loop below skips unsuitable pids
    while True:
        pid = os.fork()
        if pid == 0 and os.getpid() <= 2:
            os._exit(0)
        if pid == 0 or pid > 2:
            return pid
        os.waitpid(pid, 0)
