"""All that a started program has started: by parent, by session, and by a mark in the environment of what left both."""

import os
import signal

MARK = "WARMCELL_PROCESS"


def kill(leader, mark):
    """Stopped first, until nobody new is found: what is stopped starts nothing more."""
    found = set()
    while True:
        new = members(leader, mark) - found
        if not new:
            break
        found |= new
        _signal(new, signal.SIGSTOP)
    _signal(found, signal.SIGKILL)


def members(leader, mark):
    parents, sessions = {}, {}
    for pid in _pids():
        fields = _fields(pid)
        if fields is not None:
            parents[pid], sessions[pid] = int(fields[1]), int(fields[3])
    found = {pid for pid in sessions if pid == leader or sessions[pid] == leader or _is_marked(pid, mark)}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found - {os.getpid()}


def _pids():
    own = {1, os.getpid()}
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own]


def _fields(pid):
    """State, parent, group, session; None for who is gone or only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return fields if fields[0] not in (b"Z", b"X") else None


def _is_marked(pid, mark):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _signal(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass  # it has ended
