"""The guest's process and its job: getting used to it beforehand, laying out its files, becoming its program."""

from __future__ import annotations

import fcntl
import io
import os
from types import ModuleType

from ..light import partial, signal
from ..linux import pages
from ..wire import Job, encode_job, receive_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Mapping, NoReturn, Optional, Tuple


def await_job(
    job_descriptor: int, go: int, worker: Optional[ModuleType], droppable: Optional[List[Tuple[int, int]]] = None
) -> Callable[[], None]:
    """Cage complete: waits for the job and returns what carries it out. `go` is closed when the guest's code begins.

    `droppable` is for who will wait: it has the time to prepare for its job, and pages that it can have back later.
    """
    if worker is not None:
        if droppable is not None:
            pages.drop(droppable)  # first: those that the rehearsal asks for are those that the job will need
            rehearse()
            worker.warm_up()
        worker.forget_the_zygote()
    try:
        job = receive_job(partial(os.read, job_descriptor))
    except EOFError:
        os._exit(0)
    except OSError as error:
        _tell_failure(job_descriptor, 0, "the job", error)
    if job.mode != "python" or worker is None:
        return partial(_become_program, job, job_descriptor, go)
    try:
        _write_files(job)
    except OSError as error:
        _tell_failure(job_descriptor, 0, error.filename or "the program", error)
    os.close(go)
    os.close(job_descriptor)
    return partial(worker.run, job)


def rehearse() -> None:
    """Receives a job like any other, so that copying the pages this touches is over before the real one comes."""
    job = Job("python", (), dict(os.environ, PATH="/usr/bin"), "/code", {"main.py": b"print(1)"}, "main.py")
    # From memory: the manager counts descriptors at this very time.
    receive_job(io.BytesIO(encode_job(job)).read)


_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def _write_files(job: Job) -> None:
    for name, content in job.files.items():
        # What is to be exec'd may be the file itself: a compiled program.
        mode = 0o755 if job.mode == "exec" and name == job.main else 0o644
        if name[0] == "/":  # the work directory's, whose own directories are not there yet
            os.makedirs(os.path.dirname(name), exist_ok=True)
        descriptor = os.open(name if name[0] == "/" else f"{job.code_dir}/{name}", _NEW_FILE, mode)
        try:
            written = os.write(descriptor, content)
            while written < len(content):
                written += os.write(descriptor, memoryview(content)[written:])
        finally:
            os.close(descriptor)


def _become_program(job: Job, job_descriptor: int, go: int) -> None:
    """Writes the program's files and execs it. A failure is told on the job channel; exec closes that and `go`."""
    try:
        _write_files(job)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if job.mode == "prelude":
            _keep_for_program(job_descriptor, go)
        else:
            os.set_inheritable(job_descriptor, False)
        if job.cwd:
            os.chdir(job.cwd)
    except OSError as error:
        _tell_failure(job_descriptor, 0, error.filename or "the program", error)
    _tell_failure(job_descriptor, *_exec(job))


def _exec(job: Job) -> Tuple[int, str, OSError]:
    """Returns only with why not."""
    try:
        os.execve(_place_of(job.argv[0], job.env), list(job.argv), job.env)
    except OSError as error:
        return error.errno or 0, job.argv[0], error


def _place_of(name: str, env: Mapping[str, str]) -> str:
    """A bare name is looked for in the guest's root, by the guest's PATH. What is there says more than what is not.

    By looking, not by trying as `execvp` does: where no process may be made, the filter allows a single exec.
    """
    if "/" in name:
        return name
    places = [os.path.join(place, name) for place in env.get("PATH", os.defpath).split(":")]
    there = [place for place in places if os.path.isfile(place)]
    return next((place for place in there if os.access(place, os.X_OK)), (there or places)[0])


def _tell_failure(job_descriptor: int, number: int, what: str, error: OSError) -> NoReturn:
    """`number` is exec's errno; 0 where it never came to that."""
    os.write(job_descriptor, f"{number} {what}: {error.strerror}".encode("utf-8", "replace"))
    os._exit(126)


def _keep_for_program(job: int, go: int) -> None:
    """For a program that starts first and reads its job itself, from 3; when it has it, it closes 4."""
    safe_job, safe_go = (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 5) for descriptor in (job, go))
    os.dup2(safe_job, 3, inheritable=True)
    os.dup2(safe_go, 4, inheritable=True)
    if go not in (3, 4):
        os.close(go)  # whatever it is called, it must not stay open
    if job not in (3, 4):
        os.set_inheritable(job, False)
