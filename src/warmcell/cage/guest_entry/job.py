"""The job of a guest's process: rehearses one, receives the real one, writes its files, starts its program."""

from __future__ import annotations

import fcntl
import io
import os
from types import ModuleType

from ..fast_imports import partial, signal
from ..linux import fast_ctypes
from ..wire import NEW_FILE, GuestJob, encode_job, file_mode, receive_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Mapping, NoReturn, Optional, Tuple


def await_job(
    job_descriptor: int, go: int, worker: Optional[ModuleType], droppable: Optional[List[Tuple[int, int]]] = None
) -> Callable[[], None]:
    """In a locked cage: wait for the job and return the function that runs it. `go` is closed when guest code starts.

    `droppable` is for cells that wait in a pool: pages to drop before rehearsing.
    """
    if worker is not None:
        if droppable is not None:
            drop_pages(droppable)  # first: the rehearsal loads those pages again that the job needs
            rehearse()
            worker.warm_up()
        worker.reset_state()
    try:
        job = receive_job(partial(os.read, job_descriptor))
    except EOFError:
        os._exit(0)
    except OSError as error:
        _report_failure(job_descriptor, 0, "the job", error)
    if job.mode != "python" or worker is None:
        return partial(_become_program, job, job_descriptor, go)
    try:
        _write_files(job)
    except OSError as error:
        _report_failure(job_descriptor, 0, error.filename or "the program", error)
    os.close(go)
    os.close(job_descriptor)
    return partial(worker.run, job)


def rehearse() -> None:
    """Receive a job from memory, so that the pages that this touches are copied before the real job arrives."""
    job = GuestJob("python", (), dict(os.environ, PATH="/usr/bin"), "/code", {"main.py": b"print(1)"}, "main.py")
    # Without a pipe: the manager may be checking our descriptors.
    receive_job(io.BytesIO(encode_job(job)).read)


def _write_files(job: GuestJob) -> None:
    for name, content in job.files.items():
        if name[0] == "/":  # in the work directory, where parent directories may be missing
            os.makedirs(os.path.dirname(name), exist_ok=True)
        descriptor = os.open(name if name[0] == "/" else f"{job.code_dir}/{name}", NEW_FILE, file_mode(job, name))
        try:
            written = os.write(descriptor, content)
            while written < len(content):
                written += os.write(descriptor, memoryview(content)[written:])
        finally:
            os.close(descriptor)


def _become_program(job: GuestJob, job_descriptor: int, go: int) -> None:
    """Write the program's files and exec it. A failure is sent on the job channel; exec closes that and `go`."""
    try:
        _write_files(job)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if job.mode == "prelude":
            _pass_to_program(job_descriptor, go)
        else:
            os.set_inheritable(job_descriptor, False)
        if job.cwd:
            os.chdir(job.cwd)
    except OSError as error:
        _report_failure(job_descriptor, 0, error.filename or "the program", error)
    _report_failure(job_descriptor, *_exec(job))


def _exec(job: GuestJob) -> Tuple[int, str, OSError]:
    """Exec the program. Returns only on failure: the errno, the path and the error."""
    try:
        os.execve(_find_program(job.argv[0], job.env), list(job.argv), job.env)
    except OSError as error:
        return error.errno or 0, job.argv[0], error


def _find_program(name: str, env: Mapping[str, str]) -> str:
    """Search the guest's PATH for a bare name. A file that is not executable is preferred to a missing one.

    `execvp` would call exec for each directory, but where processes are forbidden the filter allows a single exec.
    """
    if "/" in name:
        return name
    places = [os.path.join(place, name) for place in env.get("PATH", os.defpath).split(":")]
    files = [place for place in places if os.path.isfile(place)]
    return next((place for place in files if os.access(place, os.X_OK)), (files or places)[0])


def _report_failure(job_descriptor: int, number: int, what: str, error: OSError) -> NoReturn:
    """`number` is exec's errno; 0 if exec was not reached."""
    os.write(job_descriptor, f"{number} {what}: {error.strerror}".encode("utf-8", "replace"))
    os._exit(126)


def _pass_to_program(job: int, go: int) -> None:
    """Pass both channels to a program that reads its job itself, from descriptor 3, and then closes 4."""
    safe_job, safe_go = (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 5) for descriptor in (job, go))
    os.dup2(safe_job, 3, inheritable=True)
    os.dup2(safe_go, 4, inheritable=True)
    if go not in (3, 4):
        os.close(go)  # no other copy may stay open
    if job not in (3, 4):
        os.set_inheritable(job, False)


# Dropping pages of programs and libraries saves memory in waiting processes; the kernel loads them again on use.

_MADV_DONTNEED = 4

_madvise = fast_ctypes.CDLL(None).madvise
_madvise.argtypes = [fast_ctypes.c_void_p, fast_ctypes.c_size_t, fast_ctypes.c_int]


def find_file_pages() -> List[Tuple[int, int]]:
    """The unmodified read-only file mappings of this process: (address, length)."""
    found: List[Tuple[int, int]] = []
    place = (0, 0)
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if "-" in words[0] and len(words) >= 5 and len(words[1]) == 4:
                start, end = (int(number, 16) for number in words[0].split("-"))
                is_kept = "w" in words[1] or words[4] == "0"
                place = (0, 0) if is_kept else (start, end - start)
            elif words[0] == "Anonymous:" and words[1] == "0" and place[1]:
                found.append(place)
    return found


def drop_pages(places: List[Tuple[int, int]]) -> None:
    for address, length in places:
        _madvise(address, length, _MADV_DONTNEED)
