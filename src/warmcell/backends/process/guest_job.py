"""Turns a Launch into the `GuestJob` that a waiting cell gets: program, environment, files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import warmcell.guest
from warmcell.backends.process.cell_template import CellTemplate, Directories
from warmcell.backends.process.egress import EgressHandle
from warmcell.backends.process.launch import Launch
from warmcell.cage.wire import GuestJob
from warmcell.core.errors import EnforcerFailed, EnforcerUnavailable, SandboxError
from warmcell.core.records import replace
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.policy.places import CODE_DIR, OUT_DIR, WORK_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.enforcers.contract import SandboxEnforcer, WrappedCommand

_PYTHON_WORKER, _IMAGE_START = os.path.join(warmcell.guest.__path__[0], "python"), "image_start.py"
NODE_WORKER = os.path.join(warmcell.guest.__path__[0], "node_worker.cjs")

#: Prefixes of the variables that each interpreter reads at startup.
_STARTUP_VARIABLES = {
    "python": ("PYTHON",),
    "image-python": ("PYTHON", "LD_", "LC_", "LANG"),
    "node": ("NODE", "TZ", "SSL_CERT", "OPENSSL"),
}
#: What an enforcer may ask of `subprocess` that holds for every cell, or has nothing to do with protection.
_ALWAYS_TRUE = frozenset({"env", "close_fds", "start_new_session", "cwd", "pass_fds"})

#: Enforcers that wrap programs start them in /work; this changes to another work directory first.
_CHANGE_DIRECTORY = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')


def make_job(
    launch: Launch, template: CellTemplate, directories: Directories, egress: EgressHandle, worker: str | None
) -> GuestJob:
    """The job of one run, for the warm worker that `warm_worker` named or as a program of its own."""
    program = launch.program
    if template.wrapper is not None:
        return _wrap_job(launch, template, template.wrapper, directories)
    env = _environment(launch, template, directories, egress.env)
    files, cwd = program.files, program.cwd
    if launch.files and not cwd and template.effective.image is not None:
        cwd = directories.work  # beside its files, as if they were mounted: programs of an image may start elsewhere
    if egress.files or launch.files:
        given = {os.path.join(directories.work, path): content for path, content in launch.files.items()}
        files = {**files, **egress.files, **given}
    if worker in ("python", "image-python"):
        kind, is_streamed = "python" if worker == "python" else "exec", launch.listener is not None
        return GuestJob(kind, launch.args, env, directories.code, files, program.main_file, cwd, is_streamed)
    if worker == "node":
        argv = [os.path.basename(program.argv[-1]), *launch.args]
    else:
        argv = program.argv_in(directories.code, directories.out, launch.limits.memory_mb, launch.args)
    return GuestJob("exec", tuple(argv), env, directories.code, files, program.main_file, cwd)


def warm_worker(launch: Launch, template: CellTemplate) -> str | None:
    """The warm worker that can run the source. None if the interpreter must read something at its own startup."""
    worker = launch.program.worker
    effective = template.effective
    if worker is None or effective.isolation == "none":
        return None
    if worker != "python" and not (template.is_shared and template.keeps_cells):
        return None
    # Node reads its proxy settings at startup, and they are known only after the egress proxy has started.
    if worker == "node" and effective.network == "proxy":
        return None
    if not launch.env and not effective.env:
        return worker
    names = {**effective.env, **launch.env}
    return None if any(name.startswith(_STARTUP_VARIABLES[worker]) for name in names) else worker


def make_prelude(worker: str | None, launch: Launch, template: CellTemplate) -> GuestJob | None:
    """Starts an interpreter in a cell, where it waits for the job. None: nothing is started ahead."""
    argv = launch.program.argv
    if worker == "image-python":
        argv, files = (argv[0], "-s", f"{CODE_DIR}/{_IMAGE_START}"), _image_python_files()
    elif worker == "node":
        argv = (*argv[: argv.index("--require")], f"{CODE_DIR}/worker.cjs")
        with open(NODE_WORKER, "rb") as file:
            files = {"worker.cjs": file.read()}
    else:
        return None
    return GuestJob("prelude", argv, dict(template.default_env(Directories())), CODE_DIR, files)


@cache
def _image_python_files() -> Mapping[str, bytes]:
    with open(os.path.join(_PYTHON_WORKER, _IMAGE_START), "rb") as file:
        start = file.read()
    names = ("interpreter_exit", "worker", "image_job")
    return {_IMAGE_START: start, "modules": pack_modules(_PYTHON_WORKER, names, lambda name: f"<warmcell {name}>")}


def pack_modules(directory: str, names: Iterable[str], shown_name: Callable[[str], str]) -> bytes:
    """The source of each module and, to save time, its compiled code. `shown_name`: the file name in tracebacks.

    As one file: twenty files take too long to write into a cage and to find there. Every Python can read the outer
    form; the code in it is used by one with the same magic number.
    """
    import marshal
    from importlib.util import MAGIC_NUMBER

    sources, compiled = {}, {}
    for name in names:
        with open(os.path.join(directory, f"{name}.py"), encoding="utf-8") as file:
            sources[name] = file.read()
        code = compile(sources[name], shown_name(name), "exec", dont_inherit=True, optimize=0)
        compiled[name] = marshal.dumps(code)
    return marshal.dumps((MAGIC_NUMBER, sources, compiled), 2)


def _environment(
    launch: Launch, template: CellTemplate, directories: Directories, egress_env: Mapping[str, str]
) -> Mapping[str, str]:
    default, program, policy_env = template.default_env(directories), launch.program.env, template.effective.env
    if not (program or egress_env or policy_env or launch.env):
        return default
    return {**default, **program, **egress_env, **policy_env, **launch.env}


def _wrap_job(launch: Launch, template: CellTemplate, enforcer: SandboxEnforcer, directories: Directories) -> GuestJob:
    """The enforcer reads the policy itself, so what differs for this run is put into a copy of it."""
    program, policy, work = launch.program, template.policy, template.effective.work
    policy = replace(
        policy,
        env={**program.env, **policy.env, **launch.env},
        limits=launch.limits.as_limits(),
        allowed_paths=_collect_paths(launch, directories, policy),
    )
    argv = program.argv_in(CODE_DIR, OUT_DIR, launch.limits.memory_mb, launch.args)
    program_path, *args = argv if work == WORK_DIR else [*_CHANGE_DIRECTORY, work, *argv]
    try:
        wrapped = enforcer.wrap_command(program_path, args, policy)
        env = _configured_env(enforcer, wrapped, policy)
    except SandboxError:
        raise
    except Exception as error:  # the enforcer may be third-party code
        raise EnforcerFailed(enforcer.name, f"could not wrap the command: {type(error).__name__}: {error}") from error
    return GuestJob("exec", tuple(wrapped.argv), env, directories.code, dict(program.files), program.main_file)


def _configured_env(enforcer: SandboxEnforcer, wrapped: WrappedCommand, policy: SandboxPolicy) -> dict[str, str]:
    """The environment that the enforcer asks for. Other `subprocess` options a cell either has or cannot give."""
    options = enforcer.configure_command(wrapped, policy)
    unknown = sorted(set(options) - _ALWAYS_TRUE)
    if wrapped.pass_fds or options.get("pass_fds") or unknown:
        what = unknown[0] if unknown else "pass_fds"
        raise EnforcerUnavailable(
            enforcer.name,
            f"it needs {what}= of `subprocess`, which the process backend does not use",
            hint="have wrap_command return a command line that works without it",
        )
    env = options.get("env")
    return dict(env if isinstance(env, Mapping) else wrapped.env)


def _collect_paths(launch: Launch, directories: Directories, policy: SandboxPolicy) -> tuple[AllowedPath, ...]:
    read_only = [AllowedPath(directories.code, AccessMode.READ_ONLY, CODE_DIR)]
    read_only += [AllowedPath(path, AccessMode.READ_ONLY) for path in launch.program.runtime_paths]
    extra = [
        AllowedPath(path.source, AccessMode.READ_WRITE if path.writable else AccessMode.READ_ONLY, path.target)
        for path in launch.extra_paths
    ]
    merged = {path.target: path for path in (*read_only, *extra, *policy.allowed_paths)}
    return tuple(merged.values())
