"""The overlay server: mounts overlays for sandboxes whose directory must not be written, and hands out copies.

One process in its own user and mount namespace, in which no guest runs. All cells of a sandbox get copies of one mount:
two overlays over the same upper directory would not see each other's changes, and could undo them.
"""

from __future__ import annotations

import errno
import os
import select

from .failure import CageError, send_failure, step
from .fast_imports import socket
from .guest_entry.root import enter_new_tmpfs
from .linux import mounts
from .linux.descriptors import OwnedDescriptors, closing_fd
from .linux.mounts import MS_NODEV, MS_NOSUID
from .linux.namespaces import HomeNamespace
from .linux.syscalls import call
from .plan import decode_binds
from .wire import PacketTruncated, receive_packet, send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, NoReturn, Sequence

    from .plan import Bind

#: Names in the overlay's directory on our tmpfs. The upper and the work directory must be on one mount.
_LAYER, _MERGED = "layer", "merged"
UPPER, WORK = "upper", "work"


class OverlayServer:
    """Mounts in a second mount namespace, with a tmpfs; in the first one, paths are those of the host."""

    def __init__(self) -> None:
        with step("make workshop"):
            self._home = HomeNamespace("mnt")
            self._home.enter_new()
            try:
                enter_new_tmpfs("/tmp")
                self._workshop = self._home.open_current()
            finally:
                self._home.return_home()
        #: The root of each overlay, by the number that the supervisor gave it.
        self._mounted: Dict[int, int] = {}

    def mount(self, number: int, lowers: Sequence[Bind], layer: Bind) -> int:
        """Mount an overlay; `layer` has the directories `upper` and `work`. Returns a detached copy."""
        with OwnedDescriptors() as owned:
            trees = [owned.take(mounts.detached_tree(bind, lambda _: None)) for bind in (*lowers, layer)]
            self._enter()
            try:
                os.mkdir(f"/tmp/{number}")
                os.chdir(f"/tmp/{number}")
                self._mounted[number] = _mount_here(trees)
                return mounts.copy_tree(self._mounted[number])
            except BaseException:
                self._remove(number)
                raise
            finally:
                self._home.return_home()

    def copy(self, number: int) -> int:
        """Make a detached copy for another cell."""
        root = self._mounted.get(number)
        if root is None:
            raise CageError("copy overlay", errno.ENOENT, str(number))
        self._enter()
        try:
            with step("copy overlay"):
                return mounts.copy_tree(root)
        finally:
            self._home.return_home()

    def forget(self, number: int) -> None:
        """Remove an overlay; cells and the supervisor keep their copies. An earlier server may have mounted it."""
        if number not in self._mounted:
            return
        self._enter()
        try:
            self._remove(number)
        finally:
            self._home.return_home()

    def _enter(self) -> None:
        with step("enter workshop"):
            self._home.enter(self._workshop)

    def _remove(self, number: int) -> None:
        root = self._mounted.pop(number, -1)
        if root >= 0:
            os.close(root)
        os.chdir("/")
        place = f"/tmp/{number}"
        for name in (_MERGED, _LAYER, *(entry for entry in os.listdir(place) if entry.startswith("l"))):
            try:
                call("umount2", f"{place}/{name}".encode(), mounts.MNT_DETACH)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT):  # not mounted, or missing
                    raise
            if os.path.isdir(f"{place}/{name}"):
                os.rmdir(f"{place}/{name}")
        os.rmdir(place)


def _mount_here(trees: Sequence[int]) -> int:
    """Mount the overlay, with relative names: mount options are limited to one page."""
    *lowers, layer = trees
    names = [f"l{number}" for number in range(len(lowers))]
    with step("mount overlay"):
        for name, tree in zip((*names, _LAYER), (*lowers, layer)):  # noqa: B905  # `strict` came after Python 3.9
            os.mkdir(name)
            mounts.attach_tree(tree, name)
        os.mkdir(_MERGED)
        options = f"lowerdir={':'.join(reversed(names))},upperdir={_LAYER}/{UPPER},workdir={_LAYER}/{WORK},userxattr"
        mounts.mount("overlay", _MERGED, "overlay", MS_NOSUID | MS_NODEV, options)
        return os.open(_MERGED, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def serve(control: socket.socket, supervisor: int) -> NoReturn:
    """Answer requests until the supervisor closes the channel or dies."""
    try:
        server = OverlayServer()
    except CageError as failure:
        send_failure(control, failure)
        os._exit(1)
    send_packet(control, {"ready": True})
    poll = select.poll()
    for descriptor in (control.fileno(), supervisor):
        poll.register(descriptor, select.POLLIN)
    while supervisor not in dict(poll.poll()):
        try:
            order, _ = receive_packet(control)
        except PacketTruncated:
            order = {}
        if not order:
            break
        _answer(control, server, order)
    os._exit(0)


def _answer(control: socket.socket, server: OverlayServer, order: Dict[str, Any]) -> None:
    try:
        number = int(order["overlay"])
        if "lowers" in order:
            layer = decode_binds([order["layer"]])[0]
            tree = server.mount(number, decode_binds(order["lowers"]), layer)
        elif "forget" in order:
            server.forget(number)
            send_packet(control, {"forgotten": number})
            return
        else:
            tree = server.copy(number)
    except CageError as failure:
        send_failure(control, failure)
        return
    except OSError as error:
        send_failure(control, CageError("serve overlay", error.errno or 0, str(error.filename or error.strerror)))
        return
    try:
        with closing_fd(tree):
            send_packet(control, {"tree": number}, [tree])
    except OSError as error:  # such as too many descriptors in flight: other overlays must stay
        send_failure(control, CageError("serve overlay", error.errno or 0, str(number)))
