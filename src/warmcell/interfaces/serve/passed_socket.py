"""A listening socket that a service manager passed, as systemd does for a `.socket` unit.

It outlives the server: clients that connect while a new version starts wait instead of being refused.
"""

from __future__ import annotations

import os
import socket

from warmcell.core.errors import InvalidRequest

#: The first descriptor that systemd passes.
_FIRST = 3
_HINT = "give the .socket unit one ListenStream= with a port"


def take_passed_socket() -> socket.socket | None:
    """The socket by `LISTEN_PID` and `LISTEN_FDS`, which are removed; None if there is none for this process."""
    passed_to, count, _ = (os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if passed_to != str(os.getpid()):
        return None
    if count != "1":
        raise InvalidRequest(f"the service manager passed {count or 0} sockets, and the server uses one", hint=_HINT)
    try:
        passed = socket.socket(fileno=_FIRST)
        is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidRequest(f"descriptor {_FIRST} is not a socket: {reason}", hint=_HINT) from None
    os.set_inheritable(_FIRST, False)
    if not is_listening or passed.family not in (socket.AF_INET, socket.AF_INET6):
        passed.close()
        raise InvalidRequest("the socket of the service manager does not listen on a TCP port", hint=_HINT)
    return passed
