"""Builds: compiles or checks a program in a cage of its own, and turns the artefact into something that can be run.

Artefacts are stored by the hash of everything that they were built from. Runs of different callers share them, so
nothing of a caller may be in one. A build therefore runs under `BUILD_POLICY`, without the policy's paths, network or
variables and without the request's; and what it can still see that differs between callers is in its key
(`add_cache_key`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from warmcell.backends.process.launch import MAX_SENT_BYTES, Launch
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, MemoryExceeded
from warmcell.core.light import Cleanup
from warmcell.core.records import replace
from warmcell.core.types import MIB, EffectiveLimits, ExecResult
from warmcell.enforcers.pin_paths import pin
from warmcell.languages.plain import build_key
from warmcell.languages.program_spec import CODE_DIR as CODE_PLACEHOLDER
from warmcell.languages.program_spec import OUT_DIR as OUT_PLACEHOLDER
from warmcell.languages.program_spec import Build, ProgramSpec
from warmcell.lifetime.held_directories import HeldDirectory, create_held_directory, hold, make_cache, user_cache
from warmcell.lifetime.own_modes import is_own_directory
from warmcell.lifetime.ownership import Lock
from warmcell.policy.places import OUT_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 256 * MIB
_MOST_BYTES = 1024 * MIB
_MOST_KEPT = 256


def add_cache_key(program: ProgramSpec, enforcer: str | None, limits: EffectiveLimits) -> Build:
    """The build with a key that covers everything its output can depend on; a language's own key is only part of it.

    The isolation class, because the bare class and Landlock show a compiler more of the host than a cage does; the
    limits, because a program can read them while it is compiled (`include_str!("/proc/self/limits")`).
    """
    assert program.build is not None
    build = program.build
    files = sorted((name, build_key(content.hex())) for name, content in program.files.items())
    said = [getattr(limits, name) for name in limits.__slots__]
    key = build_key(build.cache_key, build.argv, files, program.runtime_paths, enforcer, said)
    return replace(build, cache_key=key)


class ArtefactCache:
    """A directory per artefact in the user's cache, readable only by that user. Guests see one of them, read-only.

    At most 256 artefacts and 1 GiB, the most recently used. A user of an artefact holds a lock, so that it is not
    removed.
    """

    def __init__(self) -> None:
        self._root = os.path.join(user_cache(), "builds")
        self._temporary: HeldDirectory | None = None
        self._lock = Lock()

    def find(self, build: Build, cleanup: ExitStack | Cleanup) -> str | None:
        """The artefact's directory, held until `cleanup`."""
        directory = os.path.join(self._root, build.cache_key)
        if not is_own_directory(directory) or not os.path.isfile(os.path.join(directory, build.artefact)):
            return None
        held = hold(directory, is_shared=True)
        if held is None:
            return None
        cleanup.callback(held.release)
        try:  # noqa: SIM105 - contextlib takes long to load
            os.utime(directory)
        except OSError:
            pass  # only for `_forget_oldest`; the disk may be read-only
        return directory

    @contextmanager
    def workshop(self) -> Iterator[str]:
        """An empty directory for one build, on the file system where the artefact will stay."""
        from warmcell.workspace.remove import remove_directory

        with create_held_directory(".build-", self._writable_root()) as held:
            try:
                yield held.path
            finally:
                remove_directory(held.path)

    def _writable_root(self) -> str:
        with self._lock:
            held = self._temporary
            if held is not None and held.is_ours and os.path.isdir(held.path):
                return held.path
            try:
                make_cache(self._root)
                if (
                    is_own_directory(self._root)
                    and is_own_directory(os.path.dirname(self._root))
                    and os.access(self._root, os.W_OK)
                ):
                    return self._root
            except OSError:
                pass
            # No home directory: for this process only, and removed by it or by the next sweep.
            if held is not None:
                held.release()
            self._temporary = create_held_directory("warmcell-builds-")
            self._root = self._temporary.path
            return self._root

    def close(self) -> None:
        """Removes the temporary cache, if there is one."""
        held, self._temporary = self._temporary, None
        if held is not None and held.is_ours:
            from warmcell.workspace.remove import remove_directory

            remove_directory(held.path)
            held.release()

    def store(self, build: Build, workshop: str, cleanup: ExitStack | Cleanup) -> str:
        """Moves the artefact out of the workshop, which a compiler that is a guest can write to, into the cache."""
        made = os.path.join(workshop, build.artefact)
        _check_output(made)
        fresh = create_held_directory(".keep-", self._root)
        cleanup.callback(fresh.release)  # the lock stays with the directory when it is renamed
        os.rename(made, os.path.join(fresh.path, build.artefact))
        os.chmod(fresh.path, 0o755)  # reached only through its 0700 parent, or as a mount
        final = os.path.join(self._root, build.cache_key)
        fresh.share()  # shared: a program may hold it for long, and others must find it
        try:
            os.rename(fresh.path, final)
        except OSError:  # another process built the same
            from warmcell.workspace.remove import remove_directory

            remove_directory(fresh.path)
            return self._theirs(build, cleanup)
        self._forget_oldest()
        return final

    def _theirs(self, build: Build, cleanup: ExitStack | Cleanup) -> str:
        found = self.find(build, cleanup)
        if found is None:
            raise ExecutionFailed("the compiled program could not be stored", hint="run it again")
        return found

    def _forget_oldest(self) -> None:
        from warmcell.workspace.remove import remove_directory

        total = 0
        for position, (_, size, path) in enumerate(sorted(_list_artefacts(self._root), reverse=True)):
            total += size
            held = hold(path) if position >= _MOST_KEPT or total > _MOST_BYTES else None
            if held is not None:  # an artefact in use stays
                with held:
                    remove_directory(path)


def _check_output(path: str) -> None:
    """Requires a regular file without other hard links: what is run is then what is stored."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > _LARGEST:
        raise ExecutionFailed("the compiler wrote no regular file, or one larger than 256 MiB")
    os.chmod(path, 0o755)


def _list_artefacts(root: str) -> Iterator[tuple[float, int, str]]:
    """Last use, size on disk and path of each artefact."""
    for entry in os.scandir(root):
        if entry.name.startswith("."):
            continue
        try:
            used = entry.stat().st_mtime
            size = sum(file.stat(follow_symlinks=False).st_blocks * 512 for file in os.scandir(entry.path))
        except OSError:  # removed by another process
            continue
        yield used, size, entry.path


class Builder:
    """One per launcher. `run` carries out one launch; `scope` names the isolation class that compilers run in."""

    def __init__(self, run: Callable[[Launch], ExecResult], scope: str | None, limits: EffectiveLimits) -> None:
        self._run, self._scope, self._limits = run, scope, limits
        self._artefacts: ArtefactCache | None = None
        self._lock = Lock()

    def build(self, launch: Launch, cleanup: ExitStack | Cleanup) -> Launch | ExecResult:
        """The launch of the built program, valid until `cleanup`; or the compiler's result if it failed."""
        with self._lock:
            artefacts = self._artefacts = self._artefacts or ArtefactCache()
        build = add_cache_key(launch.program, self._scope, self._limits).beside(launch.files)
        built_for, spent, directory = 0.0, 0.0, artefacts.find(build, cleanup)
        if directory is None:
            with artefacts.workshop() as workshop:
                result = self._run(_compiler_launch(replace(launch, limits=self._limits), build, workshop))
                if not result.ok:
                    return result
                built_for, directory = result.duration, artefacts.store(build, workshop, cleanup)
                spent = min(built_for, result.usage.cpu_time)  # the host's load is not the program's
            if spent >= launch.timeout:
                raise ExecutionTimeout(launch.timeout, phase="build")
        program = replace(launch.program, build=None, files={})
        artefact = os.path.join(directory, build.artefact)
        return replace(launch, program=program, artefact=artefact, spent=spent, built_for=built_for)

    def build_and_stream(self, launch: Launch, cleanup: ExitStack | Cleanup) -> Launch | ExecResult:
        """`build` with a listener, which gets the compiler's output only if that is the run's outcome."""
        if launch.listener is None:
            return self.build(launch, cleanup)
        from warmcell.runner.listening import deliver_result

        try:
            built = self.build(launch, cleanup)
        except (ExecutionTimeout, MemoryExceeded) as ended:
            deliver_result(launch.listener, ended.result)
            raise
        deliver_result(launch.listener, built if isinstance(built, ExecResult) else None)
        return built

    def check_syntax(self, launch: Launch) -> Launch | ExecResult:
        """For languages without a compiler: the launch itself, or the result of the checker if it failed."""
        check = launch.program.check
        if check is None:
            return launch
        program = replace(check() if callable(check) else check, env={})
        result = self._run(replace(_without_request(launch), program=program, files={}))
        return launch if result.ok else result

    def close(self) -> None:
        if self._artefacts is not None:
            self._artefacts.close()


def _compiler_launch(launch: Launch, build: Build, workshop: str) -> Launch:
    """The compiler's run. It gets the request's files, which are part of the program and of the cache key."""
    compiler = replace(launch.program, argv=build.argv, build=None, worker=None, env={})
    out = pin(workshop, OUT_DIR, writable=True)
    return replace(_without_request(launch), program=compiler, extra_paths=(out,))


def _without_request(launch: Launch) -> Launch:
    """Artefacts are shared, so a build gets nothing of the request: no variable, no input, no path."""
    return replace(launch, env={}, stdin=b"", args=(), fetch_files=(), phase="build", listener=None)


def attach_artefact(launch: Launch) -> Launch:
    """Sends a small artefact with the job, so that any waiting cell will do; a large one needs a cell with a mount."""
    directory, name = os.path.split(launch.artefact)
    program = launch.program
    if os.path.getsize(launch.artefact) > min(MAX_SENT_BYTES, launch.limits.disk_mb * MIB // 4):
        return replace(launch, artefact="", extra_paths=(*launch.extra_paths, pin(directory, OUT_DIR)))
    with open(launch.artefact, "rb") as file:
        content = file.read()
    argv = tuple(word.replace(OUT_PLACEHOLDER, CODE_PLACEHOLDER) for word in program.argv)
    program = replace(program, argv=argv, files={name: content}, main_file=name)
    return replace(launch, artefact="", program=program)
