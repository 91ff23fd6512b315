"""The guest's process and its job: getting used to it beforehand, laying out its files, becoming its program."""

from __future__ import annotations

import functools
import os
import signal
from types import ModuleType
from typing import Callable, List, Optional, Tuple

from ..linux import pages
from ..linux.fds import close_all
from ..wire import Job, encode_job, receive_job


def await_job(
    job_descriptor: int, worker: Optional[ModuleType], droppable: Optional[List[Tuple[int, int]]] = None
) -> Callable[[], None]:
    """Cage complete: waits for the job and returns what carries it out.

    `droppable` is for who will wait: it has the time to prepare for its job, and pages that it can have back later.
    """
    _restore_signals()
    if worker is not None:
        if droppable is not None:
            _rehearse()
            worker.warm_up()
        worker.forget_the_zygote()
        if droppable is not None:
            pages.drop(droppable)
    try:
        job = receive_job(job_descriptor)
    except EOFError:
        os._exit(0)
    if job.mode != "python" or worker is None:
        return functools.partial(_become_program, job, job_descriptor)
    _write_files(job)
    os.close(job_descriptor)
    return functools.partial(worker.run, job)


def _restore_signals() -> None:
    """What a program finds when a shell starts it; Python itself ignores SIGPIPE and SIGXFSZ."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _rehearse() -> None:
    """Receives a job like any other, so that copying the pages this touches is over before the real one comes."""
    job = Job("python", (), dict(os.environ, PATH="/usr/bin"), "/code", {"main.py": b"print(1)"}, "main.py")
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        os.write(writer, encode_job(job))
        receive_job(reader)
    finally:
        close_all([reader, writer])


def _write_files(job: Job) -> None:
    for name, content in job.files.items():
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(os.path.join(job.code_dir, name), flags, 0o644)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)


def _become_program(job: Job, job_descriptor: int) -> None:
    """Writes the program's files and execs it. A failure is told on the job channel, which exec closes."""
    try:
        _write_files(job)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if job.mode == "prelude":  # a program that starts first and reads its job itself, from descriptor 3
            os.dup2(job_descriptor, 3, inheritable=True)
        else:
            os.set_inheritable(job_descriptor, False)
        os.execve(job.argv[0], list(job.argv), job.env)
    except OSError as error:
        os.write(job_descriptor, f"{job.argv[0]}: {error.strerror}".encode())
        os._exit(126)
