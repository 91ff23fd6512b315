"""The guest's process and its job: getting used to it beforehand, laying out its files, becoming its program."""

from __future__ import annotations

import os
import signal

from .wire import Job, close_all, encode_job, receive_job


def restore_signals() -> None:
    """What a program finds when a shell starts it; Python itself ignores SIGPIPE and SIGXFSZ."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def rehearse() -> None:
    """Receives a job like any other, so that copying the pages this touches is over before the real one comes."""
    job = Job("python", (), dict(os.environ, PATH="/usr/bin"), "/code", {"main.py": b"print(1)"}, "main.py")
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        os.write(writer, encode_job(job))
        receive_job(reader)
    finally:
        close_all([reader, writer])


def write_files(job: Job) -> None:
    for name, content in job.files.items():
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(os.path.join(job.code_dir, name), flags, 0o644)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)


def become_program(job: Job, job_descriptor: int) -> None:
    """Writes the program's files and execs it. A failure is told on the job channel, which exec closes."""
    try:
        write_files(job)
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
