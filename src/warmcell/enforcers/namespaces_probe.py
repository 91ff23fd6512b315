"""Probes whether this user may create namespaces and mount in them, by a child that tries. Also run as a program.

Machine code executes the child's list of system calls, so the child needs no interpreter and no copy of this process,
and other threads do not matter. Where memory cannot be made executable, a new process runs the list.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    from types import ModuleType

    _package = ModuleType("cage")
    _package.__path__ = [sys.argv[1]]
    sys.modules["cage"] = _package
    from cage.failure import CageError  # type: ignore[import-not-found]
    from cage.linux import call_list, kernel_files, mounts, namespaces  # type: ignore[import-not-found]
else:
    from warmcell.cage.failure import CageError
    from warmcell.cage.linux import call_list, kernel_files, mounts, namespaces

_FLAGS = namespaces.CLONE_NEWUSER | namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID
_QUIET = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC


def refusal() -> CageError | None:
    """The step that failed; None if namespaces, id maps and mounts work as the cage needs them."""
    failure = _ask_by_spawn() if call_list.can_spawn() else _ask_by_new_process()
    if failure is not None and failure.step == "map own user":
        # A process that changed its user may not write to its own files in /proc; its children may.
        failure = _ask_by_new_process()
    return failure


def _ask_by_spawn() -> CageError | None:
    import select

    prepared = _attempts().prepare([])
    try:
        child = call_list.spawn(_FLAGS, prepared)
    except OSError as error:
        return CageError("create namespaces", error.errno or 0, "")
    try:
        poll = select.poll()  # waitpid alone would fail if SIGCHLD is ignored
        poll.register(child.pidfd, select.POLLIN)
        poll.poll()
    finally:
        os.close(child.pidfd)
        _reap(child.pid)
    return prepared.failure()


def _attempts() -> call_list.CallList:
    """The calls that a manager makes in its own namespaces."""
    calls = call_list.CallList()
    calls.begin_step("map own user")
    uid, gid = os.geteuid(), os.getegid()
    for name, text in (("setgroups", "deny"), ("gid_map", f"0 {gid} 1"), ("uid_map", f"0 {uid} 1")):
        kernel_files.write_in_list(calls, f"/proc/self/{name}", text)
    calls.begin_step("make mounts slave", "/")
    mounts.make_private(calls)
    calls.begin_step("mount own proc", "/proc")
    mounts.add(calls, "proc", "/proc", "proc", _QUIET)
    calls.begin_step("mount scratch", "tmpfs")
    mounts.add(calls, "tmpfs", "/proc", "tmpfs", _QUIET)
    return calls


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # a SIGCHLD handler of the host program reaped it first
        os.waitpid(pid, 0)


def _ask_by_new_process() -> CageError | None:
    """Runs this file as a program, for processes that cannot spawn the child themselves."""
    import subprocess

    import warmcell.cage
    from warmcell.lifetime.host_program import CHILD_MARK, own_interpreter

    command = [own_interpreter(), "-I", "-S", os.path.abspath(__file__), warmcell.cage.__path__[0]]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/", env={CHILD_MARK: "1"}
    )
    number, _, step = done.stdout.decode("utf-8", "replace").partition(" ")
    return None if number == "0" else CageError(step or "create namespaces", int(number or 0), "")


def _ask_by_clone() -> CageError | None:
    """In the new process, if memory cannot be made executable: tries in a clone of it."""
    prepared = _attempts().prepare([])  # before the clone, in which ids are not mapped yet
    reader, writer = os.pipe()
    try:
        pid, _ = namespaces.clone(_FLAGS)
    except OSError as error:
        return CageError("create namespaces", error.errno or 0, "")
    if pid == 0:
        try:
            prepared.run()
        except CageError as failure:
            os.write(writer, f"{failure.errno} {failure.step}".encode())
        os._exit(0)
    _reap(pid)
    os.close(writer)
    number, _, step = os.read(reader, 4096).decode().partition(" ")
    return CageError(step, int(number), "") if number else None


if __name__ == "__main__":
    found = _ask_by_spawn() if call_list.can_spawn() else _ask_by_clone()
    os.write(1, f"{found.errno} {found.step}".encode() if found is not None else b"0")
