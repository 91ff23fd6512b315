"""Builds: compiles or checks a program in a cage of its own, and turns the artefact into something that can be run."""

from __future__ import annotations

import os

from warmcell.backends.process.artefacts import ArtefactCache, add_cache_key
from warmcell.backends.process.launch import MAX_SENT_BYTES, Launch
from warmcell.core.errors import ExecutionTimeout, MemoryExceeded
from warmcell.core.records import replace
from warmcell.core.types import MIB, EffectiveLimits, ExecResult
from warmcell.enforcers.pin_paths import pin
from warmcell.languages.program_spec import CODE_DIR as CODE_PLACEHOLDER
from warmcell.languages.program_spec import OUT_DIR as OUT_PLACEHOLDER
from warmcell.languages.program_spec import Build
from warmcell.lifetime.ownership import Lock
from warmcell.policy.places import OUT_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from warmcell.core.light import Cleanup


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
        spent, directory = 0.0, artefacts.find(build, cleanup)
        if directory is None:
            with artefacts.workshop() as workshop:
                result = self._run(_compiler_launch(replace(launch, limits=self._limits), build, workshop))
                if not result.ok:
                    return result
                spent, directory = result.duration, artefacts.store(build, workshop, cleanup)
            if spent >= launch.timeout:
                raise ExecutionTimeout(launch.timeout, phase="build")
        program = replace(launch.program, build=None, files={})
        return replace(launch, program=program, artefact=os.path.join(directory, build.artefact), spent=spent)

    def build_and_stream(self, launch: Launch, cleanup: ExitStack | Cleanup) -> Launch | ExecResult:
        """The same. The listener gets the compiler's output only if that is the outcome of the run."""
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
    """The compiler's own run. The request's files go with it: they are part of the program and of the cache key."""
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
