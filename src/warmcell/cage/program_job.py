"""A job that is to become a program, as a list of system calls: what `guest/job.py` does for it, written down before.

The supervisor writes it, and a cell that says so carries it out, by machine code that knows nothing of jobs
(`linux/list_program.py`). Pure module, of structures that both sides know.
"""

from __future__ import annotations

import os
import posixpath
import struct

from .linux.syscall_numbers import AARCH64, X86_64
from .records import NamedTuple
from .wire import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence, Tuple

#: Where a job goes in its process.
PLACE = 0x20_0000_0000
_HEADER = struct.Struct("=5Q")  # bytes to map, bytes to come, where the steps are, how many, where results go
_STEP = struct.Struct("=11q")
_FAILURE = struct.Struct("=qq")
_ANY = -1
_AT_FDCWD = -100
_EEXIST, _ENOSPC = 17, 28
_SIGPIPE, _SIGXFSZ, _SIG_SETMASK = 13, 25, 2
_NUMBERS = {"x86_64": X86_64, "aarch64": AARCH64}.get(os.uname().machine, {})


class ProgramJob(NamedTuple):
    """What is sent, and what each of its steps is about."""

    content: bytes
    #: Whether the step is the exec, and what it names.
    about: Tuple[Tuple[bool, str], ...]

    def explain(self, told: bytes) -> str:
        """Which step failed and how, in the words that `guest/job.py` uses: 0, or exec's errno, and the reason."""
        if len(told) != _FAILURE.size:
            return "0 the job: it was answered by what is no answer"
        done, result = _FAILURE.unpack(told)
        is_exec, what = self.about[done] if 0 <= done < len(self.about) else (False, "the job")
        # What comes back and is no error is a write that found no more room.
        number = -result if result < 0 else _ENOSPC
        return f"{number if is_exec else 0} {what}: {os.strerror(number)}"


def encode_program_job(job: Job) -> ProgramJob:
    """For jobs of mode "exec" whose program is named by its path."""
    if job.mode != "exec" or "/" not in job.argv[0]:
        raise ValueError(f"{job.mode} {job.argv[0]} is no program by its path")
    writer = _Writer()
    for name, content in job.files.items():
        _write_file(writer, job, name, content)
    nothing = writer.put(bytes(32))
    for number in (_SIGPIPE, _SIGXFSZ):  # which our own code does without
        writer.call("the program", "rt_sigaction", number, nothing, 0, 8)
    writer.call("the program", "rt_sigprocmask", _SIG_SETMASK, nothing, 0, 8)  # all were blocked from its beginning
    if job.cwd:
        writer.call(job.cwd, "chdir", writer.text(job.cwd))
    argv = writer.texts(job.argv)
    env = writer.texts([f"{name}={value}" for name, value in job.env.items()])
    writer.call(job.argv[0], "execve", writer.text(job.argv[0]), argv, env)
    return writer.job()


def _write_file(writer: _Writer, job: Job, name: str, content: bytes) -> None:
    path = posixpath.join(job.code_dir, name)
    if name.startswith("/"):  # the work directory's, whose own directories are not there yet
        for parent in _parents(path):
            writer.call(parent, "mkdirat", _AT_FDCWD, writer.text(parent), 0o777, tolerated=_EEXIST)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o755 if name == job.main else 0o644  # what is to be exec'd may be the file itself: a compiled program
    file = writer.call(path, "openat", _AT_FDCWD, writer.text(path), flags, mode)
    if content:
        writer.call("the program", "write", file, writer.put(content), len(content), opened=True, wanted=len(content))
    writer.call("the program", "close", file, opened=True)


def _parents(path: str) -> List[str]:
    above = posixpath.dirname(path)
    return [*_parents(above), above] if above != "/" else []


class _Writer:
    """What the steps refer to, one after the other, and then the steps."""

    def __init__(self) -> None:
        self._content: List[bytes] = []
        self._size = 0
        self._steps: List[bytes] = []
        self._about: List[Tuple[bool, str]] = []

    def put(self, content: bytes) -> int:
        """Returns where it will be."""
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
        self, about: str, name: str, *words: int, wanted: int = _ANY, tolerated: int = 0, opened: bool = False
    ) -> int:
        """`opened`: the first word is the number of the step that opened the descriptor. Returns this step's number."""
        six = [*words, *[0] * (6 - len(words))]
        self._steps.append(_STEP.pack(_NUMBERS[name], *six, int(opened), wanted, -tolerated, 0))
        self._about.append((name == "execve", about))
        return len(self._steps) - 1

    def job(self) -> ProgramJob:
        steps = self.put(b"".join(self._steps))
        results = PLACE + self._size
        header = _HEADER.pack(self._size + 8 * len(self._steps), self._size, steps, len(self._steps), results)
        return ProgramJob(b"".join([header, *self._content]), tuple(self._about))
