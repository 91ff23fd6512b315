"""Finds and kills everything that a program started: by parent, by session, and by a mark in the environment. Pauses
and resumes everything in the cage.
"""

import _signal as signal  # without its enums, which take longer to make than the agent
import os
import time

MARK = "WARMCELL_PROCESS"
#: How often to look again while a process is in the middle of an exec: on a loaded machine that takes a while.
_QUIET_LOOKS, _PAUSE = 250, 0.002
#: How long signalled processes may take to stop. One may wait in the kernel for a stopped one.
_STOPPING_SECONDS = 1.0
#: The fields with the addresses of the environment, counted from the state. 0 during an exec.
_ENVIRONMENT = slice(47, 49)


def kill(leader, mark):
    """Stops members until no new one is found, because a stopped process starts nothing; then kills them all."""
    found, quiet = set(), 0
    while quiet < _QUIET_LOOKS:
        members, is_sure = _look(leader, mark)
        new = members - found
        found |= new
        _signal(new, signal.SIGSTOP)
        quiet = 0 if new else quiet + 1
        if is_sure and not new:
            break
        time.sleep(0 if new else _PAUSE)
    _signal(found, signal.SIGKILL)


def pause_all(spared):
    """Stops every process but init, this one and `spared`. Returns their pids.

    Ends when all have stopped and no new one is found: the signal waits until the end of a system call, such as a write
    or a fork, and on a loaded machine that takes a while.
    """
    found, moving, until = set(), set(), time.monotonic() + _STOPPING_SECONDS
    while True:
        moving = {pid for pid in moving if not _has_stopped(pid)}
        new = set(_pids()) - spared - found
        _signal(new, signal.SIGSTOP)
        found, moving = found | new, moving | new
        if not new and (not moving or time.monotonic() > until):
            return found
        if not new:
            time.sleep(_PAUSE)


def _has_stopped(pid):
    """Whether all threads of the process have stopped or ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    states = [_fields(f"{pid}/task/{thread}") for thread in threads]
    return all(fields is None or fields[0] in (b"T", b"t") for fields in states)


def resume_all():
    """Continues everything that `pause_all` stopped."""
    _signal(_pids(), signal.SIGCONT)


def signal_unhandled(group, number):
    """Signals the processes of the group that neither handle nor ignore it, so did not get an earlier one."""
    bit = 1 << (number - 1)
    for pid in _pids():
        fields = _fields(pid)
        if fields is not None and int(fields[2]) == group and not _handled_signals(pid) & bit:
            _signal([pid], number)


def _handled_signals(pid):
    """The signals that it ignores or catches, as bits; all if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return -1
    masks = [int(line.split()[1], 16) for line in lines if line.startswith((b"SigIgn:", b"SigCgt:"))]
    return masks[0] | masks[1]


def own_descendants():
    """The running descendants of this process."""
    return _look(os.getpid(), os.environ.get(MARK) or "no mark")[0]


def _look(leader, mark):
    """The members, and whether they are complete: a process in the middle of an exec shows no environment."""
    parents, sessions, places = {}, {}, {}
    for pid in _pids():
        fields = _fields(pid)
        if fields is not None:
            parents[pid], sessions[pid] = int(fields[1]), int(fields[3])
            places[pid] = fields[_ENVIRONMENT]
    marks = {pid: _mark_of(pid, places[pid]) for pid in sessions}
    found = {pid for pid in sessions if (leader and leader in (pid, sessions[pid])) or marks[pid] == mark}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    orphans = {pid for pid, parent in parents.items() if parent == os.getpid()}
    return found - {os.getpid()}, all(marks[pid] is not None for pid in orphans - found)


def _pids():
    own = {1, os.getpid()}
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own]


def _fields(pid):
    """State, parent, group, session; None for a process that is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return fields if fields[0] not in (b"Z", b"X") else None


def _mark_of(pid, place):
    """The mark of a process, "" if it has none, None during an exec. `place`: where its environment was before."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return ""
    if words == [b""]:  # an empty environment has an address too
        fields = _fields(pid)
        return None if fields is not None and (b"0" in place or fields[_ENVIRONMENT] != place) else ""
    prefix = f"{MARK}=".encode()
    return next((word for word in words if word.startswith(prefix)), b"")[len(prefix) :].decode("ascii", "replace")


def _signal(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass  # it has ended
