"""One command in one cage, in the foreground: `python -I -S <cage directory> command <plan> <program> [argument ...]`.

The guest gets our descriptors 0, 1 and 2 and our environment, and we exit with its status. For callers that start
processes themselves.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from .environment import GUEST_MARK
from .failure import CageError
from .linux.descriptors import make_pair
from .manager import start
from .wire import GuestJob, encode_job, receive_packet, send_packet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional, Sequence

    from .zygote.loop import GuestMain

_FAILED = 125


def run_command(plan_text: str, command: Sequence[str]) -> GuestMain:
    """Run the command. Returns only in the guest's process, with the function that makes it the program."""
    control, their_control = make_pair(socket.SOCK_SEQPACKET)
    zygote = os.fork()
    if zygote == 0:
        control.close()
        return start.main(their_control.detach())
    their_control.close()
    send_packet(control, {"isolation": "namespaces"})
    while "ready" not in (answer := _receive(control)[0]):
        if "pid" in answer:  # the first process clones the manager and exits
            os.waitpid(zygote, 0)
    _exit_like(_supervise(control, plan_text, command))


def _receive(channel: socket.socket) -> tuple[Dict[str, Any], List[int]]:
    message, descriptors = receive_packet(channel)
    if not message:
        _fail("the cage manager exited unexpectedly")
    if "failed" in message:
        _fail(str(CageError(*message["failed"])))
    return message, descriptors


def _supervise(control: socket.socket, plan_text: str, command: Sequence[str]) -> Dict[str, Any]:
    status, their_status = make_pair(socket.SOCK_SEQPACKET)
    job, their_job = make_pair(socket.SOCK_STREAM)
    theirs = [their_job.fileno(), their_status.fileno(), 0, 1, 2]
    send_packet(control, {"plan": plan_text, "may_exec": True}, theirs)
    their_job.close()
    their_status.close()
    while True:
        message, descriptors = _receive(status)
        if "pid" in message:
            _pass_on_signals(descriptors[0])
        if "measures" in message:
            send_packet(status, {"measure": True})
        if "measured" in message or ("ready" in message and "measures" not in message):
            env = {name.removeprefix(GUEST_MARK): value for name, value in os.environ.items()}
            job.sendall(encode_job(GuestJob("exec", tuple(command), env, "/", {})))
        if "exit" in message:
            return message


def _pass_on_signals(init: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.pidfd_send_signal(init, signal.SIGKILL))


def _fail(reason: str) -> NoReturn:
    print(f"warmcell: {reason}", file=sys.stderr)
    os._exit(_FAILED)


def _exit_like(report: Dict[str, Any]) -> NoReturn:
    status = report["exit"]
    number: Optional[int] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if number is None:
        os._exit(os.WEXITSTATUS(status))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
