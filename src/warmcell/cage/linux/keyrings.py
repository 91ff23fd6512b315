"""The session keyring, which no namespace covers: a guest would inherit the keys of the login that started us.

Every system call filter of ours refuses keyrings; this is for the classes without one.
"""

from __future__ import annotations

import errno

from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .call_list import CallList

_GET_KEYRING_ID, _JOIN_SESSION_KEYRING = 0, 1
_OF_SESSION = -3


def are_available() -> bool:
    """Whether the kernel has keyrings, and no filter around us refuses them: guests are under that filter too."""
    try:
        call("keyctl", _GET_KEYRING_ID, _OF_SESSION, 0)
    except OSError as error:
        return error.errno not in (errno.ENOSYS, errno.EPERM)
    return True


def leave_session(calls: CallList) -> None:
    """A new keyring for this guest alone, which ends with its last process."""
    calls.begin_step("leave session keyring")
    calls.call("keyctl", _JOIN_SESSION_KEYRING, 0)
