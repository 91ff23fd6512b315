"""From a run as it was asked for (`Launch`) to what a waiting cell is told (`Job`): program, environment, files."""

from __future__ import annotations

import os
from collections.abc import Mapping

import warmcell.guest
from warmcell.backends.process.egress import WayOut
from warmcell.backends.process.world import Directories, World
from warmcell.cage.environment import CAGED_ENV
from warmcell.cage.wire import Job
from warmcell.core.errors import EnforcerFailed, EnforcerUnavailable, SandboxError
from warmcell.core.records import dataclass, field, replace
from warmcell.core.types import MIB, EffectiveLimits
from warmcell.languages.program import Program
from warmcell.lifetime.run import Run
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.policy.places import CODE_DIR, OUT_DIR, WORK_DIR
from warmcell.policy.resolve import ResolvedPath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.core.contracts import SandboxEnforcer, WrappedCommand
    from warmcell.runner.listening import Listener

#: What a compiler may do, whatever the program that it makes may. Processes, because it is several of them.
BUILD_POLICY = SandboxPolicy(allow_process_spawn=True)
#: Of a compiled program, or of files; sending more takes longer than making a cell that has them mounted.
MOST_SENT = 8 * MIB
NODE_WORKER = os.path.join(warmcell.guest.__path__[0], "node_worker.cjs")

#: What each interpreter reads from its environment when it starts.
_START_VARIABLES = {"python": ("PYTHON",), "node": ("NODE", "TZ", "SSL_CERT", "OPENSSL")}
#: What an enforcer may ask of `subprocess` that holds for every cell, or says nothing about protection.
_HOLDS_ANYWAY = frozenset({"env", "close_fds", "start_new_session", "cwd", "pass_fds"})

#: An enforcer that wraps programs starts them in /work, whatever else the policy shows.
_BEGIN_IN = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')


@dataclass(frozen=True, slots=True)
class Launch:
    """`timeout` counts from the moment that the guest can run; a build has already `spent` some of it."""

    program: Program
    env: Mapping[str, str]
    #: Bytes, or a descriptor to pass on.
    stdin: bytes | int
    timeout: float
    limits: EffectiveLimits
    run: Run
    spent: float = 0.0
    args: tuple[str, ...] = ()
    #: Of the request: sent with the job, into the work directory.
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch_files: tuple[str, ...] = ()
    #: More of the host for this run: a build's output directory, an artefact.
    extra_paths: tuple[ResolvedPath, ...] = ()
    #: Compilers need processes of their own, whatever the program may do.
    is_build: bool = False
    #: Who hears the output while it comes.
    listener: Listener | None = None
    #: The file that a build made; whoever has the launch sees to it that it stays there.
    artefact: str = ""


def job_for(launch: Launch, world: World, directories: Directories, way_out: WayOut, policy: SandboxPolicy) -> Job:
    """The job of one run. `policy` is the caller's, for enforcers that read it themselves."""
    program = launch.program
    if world.wrapper is not None:
        return _wrapped_job(launch, world.wrapper, directories, policy, world.effective.work)
    env = _env(launch, world, directories, way_out.env)
    files = program.files
    if way_out.files or launch.files:
        given = {os.path.join(directories.work, path): content for path, content in launch.files.items()}
        files = {**files, **way_out.files, **given}
    warm = warm_worker(launch, world)
    if warm == "python":
        is_heard = launch.listener is not None
        return Job("python", launch.args, env, directories.code, files, program.main_file, "", is_heard)
    if warm == "node":
        argv = [os.path.basename(program.argv[-1]), *launch.args]
    else:
        argv = program.argv_in(directories.code, directories.out, launch.limits.memory_mb, launch.args)
    return Job("exec", tuple(argv), env, directories.code, files, program.main_file, program.cwd)


def warm_worker(launch: Launch, world: World) -> str | None:
    """Which worker can take the text as it is. What an interpreter reads when it starts needs a new one."""
    worker = launch.program.worker
    effective = world.effective
    if worker is None or effective.isolation == "none":
        return None
    # Node reads its proxy settings when it starts, and they are only known once the way out is open.
    if worker == "node" and not (world.is_shared and world.keeps_cells and effective.network != "proxy"):
        return None
    if not launch.env and not effective.env:
        return worker
    names = {**effective.env, **launch.env}
    return None if any(name.startswith(_START_VARIABLES[worker]) for name in names) else worker


def prelude_for(launch: Launch, world: World) -> Job | None:
    """For workers that are programs of their own: starts one in the cell, where it waits for the job."""
    if warm_worker(launch, world) != "node":
        return None
    argv = launch.program.argv
    switches = argv[1 : argv.index("--require")]
    with open(NODE_WORKER, "rb") as file:
        worker = file.read()
    name = "worker.cjs"
    command = (argv[0], *switches, f"{CODE_DIR}/{name}")
    return Job("prelude", command, dict(world.default_env(Directories())), CODE_DIR, {name: worker})


def _env(launch: Launch, world: World, directories: Directories, more: Mapping[str, str]) -> Mapping[str, str]:
    if launch.is_build:  # kept by the hash of its source, so it must not depend on who asked first
        return {**CAGED_ENV, "TMPDIR": directories.temporary}
    default, program, given = world.default_env(directories), launch.program.env, world.effective.env
    if not (program or more or given or launch.env):
        return default
    return {**default, **program, **more, **given, **launch.env}


def _wrapped_job(
    launch: Launch, enforcer: SandboxEnforcer, directories: Directories, policy: SandboxPolicy, work: str
) -> Job:
    """The enforcer reads the policy itself: what differs for this run is put into it."""
    program = launch.program
    policy = replace(
        policy,
        env={**program.env, **policy.env, **launch.env},
        limits=launch.limits.stated(),
        allowed_paths=_paths_of_the_run(launch, directories, policy),
        allow_process_spawn=policy.allow_process_spawn or launch.is_build,
    )
    argv = program.argv_in(CODE_DIR, OUT_DIR, launch.limits.memory_mb, launch.args)
    program_path, *args = argv if work == WORK_DIR else [*_BEGIN_IN, work, *argv]
    try:
        wrapped = enforcer.wrap_command(program_path, args, policy)
        env = _configured_env(enforcer, wrapped, policy)
    except SandboxError:
        raise
    except Exception as error:  # it may be anybody's
        raise EnforcerFailed(enforcer.name, f"could not wrap the command: {type(error).__name__}: {error}") from error
    return Job("exec", tuple(wrapped.argv), env, directories.code, dict(program.files), program.main_file)


def _configured_env(enforcer: SandboxEnforcer, wrapped: WrappedCommand, policy: SandboxPolicy) -> dict[str, str]:
    """What the enforcer needs of the process that it starts in: its environment. The rest cells have or cannot give."""
    asked = enforcer.configure_command(wrapped, policy)
    unknown = sorted(set(asked) - _HOLDS_ANYWAY)
    if wrapped.pass_fds or asked.get("pass_fds") or unknown:
        what = unknown[0] if unknown else "pass_fds"
        raise EnforcerUnavailable(
            enforcer.name,
            f"it needs {what}= of `subprocess`, and the process backend starts programs in another way",
            hint="put what it needs into the command line that wrap_command returns",
        )
    env = asked.get("env")
    return dict(env if isinstance(env, Mapping) else wrapped.env)


def _paths_of_the_run(launch: Launch, directories: Directories, policy: SandboxPolicy) -> tuple[AllowedPath, ...]:
    read_only = [AllowedPath(directories.code, AccessMode.READ_ONLY, CODE_DIR)]
    read_only += [AllowedPath(path, AccessMode.READ_ONLY) for path in launch.program.runtime_paths]
    extra = [
        AllowedPath(path.source, AccessMode.READ_WRITE if path.writable else AccessMode.READ_ONLY, path.target)
        for path in launch.extra_paths
    ]
    merged = {path.target: path for path in (*read_only, *extra, *policy.allowed_paths)}
    return tuple(merged.values())
