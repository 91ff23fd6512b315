"""A job that becomes a program, as a list of the system calls that `guest_entry/job.py` makes for other jobs.

The supervisor writes the list, and the cell runs it by machine code (`linux/list_program.py`). Pure module.
"""

from __future__ import annotations

import os
import posixpath
import struct

from .linux.syscall_numbers import ANY_RESULT, CALL, NUMBERS
from .records import NamedTuple
from .wire import NEW_FILE, GuestJob, file_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence, Tuple

#: The address of a job in its process.
PLACE = 0x20_0000_0000
#: The number of bytes to map, the number that follow, the address and number of calls, the address of the values.
_HEADER = struct.Struct("=5Q")
#: Indexes of the first values: the job channel, and the pipe that is closed when guest code starts. The results of the
#: calls follow.
_JOB, _GO, _GIVEN = 0, 1, 2
_FAILURE = struct.Struct("=qq")
_LEAST_RESULT = -4096  # errors of the kernel are greater
_AT_FDCWD = -100
_EEXIST, _ENOSPC = 17, 28
_SIGPIPE, _SIGXFSZ, _SIG_SETMASK = 13, 25, 2
_F_DUPFD_CLOEXEC = 1030


class ProgramJob(NamedTuple):
    """The message, and a description of each of its calls."""

    content: bytes
    #: Whether the call is the exec, and the path that it names.
    about: Tuple[Tuple[bool, str], ...]

    def explain(self, answer: bytes) -> str:
        """Describe the call that failed, in the format of `guest_entry/job.py`: exec's errno or 0, and the reason."""
        done, result = _FAILURE.unpack(answer) if len(answer) == _FAILURE.size else (0, _LEAST_RESULT)
        if result <= _LEAST_RESULT:
            return "0 the job: unexpected answer"
        is_exec, what = self.about[done] if 0 <= done < len(self.about) else (False, "the job")
        # A result that is not an error is that of a short write: the disk is full.
        number = -result if result < 0 else _ENOSPC
        return f"{number if is_exec else 0} {what}: {os.strerror(number)}"


def encode_program_job(job: GuestJob) -> ProgramJob:
    """Encode a job of mode "exec" or "prelude" whose program is a path."""
    if job.mode not in ("exec", "prelude") or "/" not in job.argv[0]:
        raise ValueError(f"not the path of a program: {job.mode} {job.argv[0]}")
    writer = _Writer()
    for name, content in job.files.items():
        _write_file(writer, job, name, content)
    nothing = writer.put(bytes(32))
    for number in (_SIGPIPE, _SIGXFSZ):  # ignored in our own processes
        writer.call("the program", "rt_sigaction", number, nothing, 0, 8)
    writer.call("the program", "rt_sigprocmask", _SIG_SETMASK, nothing, 0, 8)  # all were blocked from the start
    if job.mode == "prelude":
        _pass_channels(writer)
    if job.cwd:
        writer.call(job.cwd, "chdir", writer.text(job.cwd))
    argv = writer.texts(job.argv)
    env = writer.texts([f"{name}={value}" for name, value in job.env.items()])
    writer.call(job.argv[0], "execve", writer.text(job.argv[0]), argv, env)
    return writer.job()


def _write_file(writer: _Writer, job: GuestJob, name: str, content: bytes) -> None:
    path = posixpath.join(job.code_dir, name)
    if name.startswith("/"):  # in the work directory, where parent directories may be missing
        for parent in _parents(path):
            writer.call(parent, "mkdirat", _AT_FDCWD, writer.text(parent), 0o777, allowed_errno=_EEXIST)
    file = writer.call(path, "openat", _AT_FDCWD, writer.text(path), NEW_FILE, file_mode(job, name))
    if content:
        size = len(content)
        writer.call("the program", "write", file, writer.put(content), size, is_opened=True, expected=size)
    writer.call("the program", "close", file, is_opened=True)


def _pass_channels(writer: _Writer) -> None:
    """Pass the channels as descriptors 3 and 4 to a program that reads its job itself. Exec closes other copies."""
    copies = [
        writer.call("the program", "fcntl", channel, _F_DUPFD_CLOEXEC, 5, is_opened=True) for channel in (_JOB, _GO)
    ]
    for number, copy in enumerate(copies, 3):
        writer.call("the program", "dup3", copy, number, 0, is_opened=True)


def _parents(path: str) -> List[str]:
    above = posixpath.dirname(path)
    return [*_parents(above), above] if above != "/" else []


class _Writer:
    """Collects the data of the calls, and then the calls."""

    def __init__(self) -> None:
        self._content: List[bytes] = []
        self._size = 0
        self._calls: List[bytes] = []
        self._about: List[Tuple[bool, str]] = []

    def put(self, content: bytes) -> int:
        """Add data; returns its address."""
        place = PLACE + self._size
        padding = -len(content) % 8
        self._content += [content, bytes(padding)]
        self._size += len(content) + padding
        return place

    def text(self, text: str) -> int:
        return self.put(text.encode("utf-8", "surrogateescape") + b"\0")

    def texts(self, texts: Sequence[str]) -> int:
        places = [self.text(text) for text in texts]
        return self.put(struct.pack(f"={len(places) + 1}Q", *places, 0))

    def call(
        self,
        about: str,
        name: str,
        *words: int,
        expected: int = ANY_RESULT,
        allowed_errno: int = 0,
        is_opened: bool = False,
    ) -> int:
        """Add a call; returns the index of its result. `is_opened`: the first word is the index of a descriptor."""
        six = [*words, *[0] * (6 - len(words))]
        self._calls.append(CALL.pack(NUMBERS[name], *six, int(is_opened), expected, -allowed_errno, 0))
        self._about.append((name == "execve", about))
        return _GIVEN + len(self._calls) - 1

    def job(self) -> ProgramJob:
        calls = self.put(b"".join(self._calls))
        values = PLACE + self._size
        whole = self._size + 8 * (_GIVEN + len(self._calls))
        header = _HEADER.pack(whole, self._size, calls, len(self._calls), values)
        return ProgramJob(b"".join([header, *self._content]), tuple(self._about))
