"""One command in one cage, in the foreground: `python -I -S <cage directory> launch <plan> <program> [argument ...]`.

The guest gets our descriptors 0, 1 and 2 and our environment, and we end as it ends. For callers who start processes
themselves; Warmcell's own runs go through a zygote.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any, Callable, Dict, NoReturn, Optional, Sequence

from .failure import CageError
from .guest.job import await_job
from .wire import Job, encode_job, receive_packet, send_packet
from .zygote.cells import CellMaker, Newborn
from .zygote.prepare import forget_callers_signals, hide_command_line

_FAILED = 125


def launch(plan_text: str, command: Sequence[str]) -> Callable[[], None]:
    """Returns only in the guest's process, with what turns it into the program."""
    status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    job, their_job = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    forget_callers_signals()
    hide_command_line()
    try:
        maker = CellMaker(is_caging=True, on_birth=lambda pid: None)
    except CageError as failure:
        _give_up(str(failure))
    stdio = [os.dup(number) for number in (0, 1, 2)]
    made = maker.make({"plan": plan_text}, [their_job.detach(), their_status.detach(), *stdio])
    if isinstance(made, Newborn):
        status.close()
        job.close()
        made.grow()
        return await_job(made.channels.job, worker=None)
    _end_like(_supervise(status, job, command))


def _supervise(status: socket.socket, job: socket.socket, command: Sequence[str]) -> Dict[str, Any]:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: send_packet(status, {"stop": True}))
    while True:
        message, _ = receive_packet(status)
        if not message:
            _give_up("the cage ended unexpectedly")
        if "failed" in message:
            _give_up(str(CageError(*message["failed"])))
        if "ready" in message:
            send_packet(status, {"go": True, "exec": True})
            job.sendall(encode_job(Job("exec", tuple(command), dict(os.environ), "/", {})))
        if "exit" in message:
            return message


def _give_up(reason: str) -> NoReturn:
    print(f"warmcell: {reason}", file=sys.stderr)
    os._exit(_FAILED)


def _end_like(report: Dict[str, Any]) -> NoReturn:
    status = report["exit"]
    number: Optional[int] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if number is None:
        os._exit(os.WEXITSTATUS(status))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
