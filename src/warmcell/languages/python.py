"""Python: which interpreter runs the guest's code, what it needs of the host, and how it is started."""

from __future__ import annotations

import os
import sys
from functools import lru_cache, partial

from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import dataclass
from warmcell.enforcers.host import FileStamp, is_program, query_tool, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import CODE_DIR, ProgramSpec
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr, configured_program, is_installation, symlink_chain, visible_paths
from warmcell.lifetime.host_program import base_executable, own_interpreter

MAIN_FILE = "main.py"
OLDEST = (3, 9)

_QUESTION = """
import json, os, sys, sysconfig
names = "prefix exec_prefix base_prefix base_exec_prefix".split()
print("\\nWARMCELL", json.dumps({"executable": sys.executable, "version": list(sys.version_info[:3]),
    "prefixes": [getattr(sys, name) for name in names],
    "libraries": [os.path.dirname(os.__file__), sysconfig.get_path("platstdlib")]}))
"""

#: Runs the file as `__main__`: the working directory is importable, `exit()` exists despite `-S`, a locale that the
#: interpreter coerced into its environment is removed, and no frame of this text appears in the guest's tracebacks. It
#: must work in every Python from 3.9 on.
BOOT = """
def _start():
    import os, sys
    path = sys.argv[1]
    del sys.argv[0]
    if sys.path and not sys.path[0]:
        sys.path[0] = os.getcwd()
    if sys.flags.no_site:
        import site
        site.setquit(); site.setcopyright(); site.sethelper()
    if "LC_CTYPE" in os.environ and os.path.exists("/proc/self/environ"):
        with open("/proc/self/environ", "rb") as given:
            if not any(item.startswith(b"LC_CTYPE=") for item in given.read().split(bytes(1))):
                del os.environ["LC_CTYPE"]
    with open(path, "rb") as file:
        source = file.read()
    scope = sys.modules["__main__"].__dict__
    del scope["_start"]
    scope["__file__"], scope["__cached__"] = path, None
    try:
        exec(compile(source, path, "exec", dont_inherit=True), scope)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
    else:
        return
    sys.exit(1)
_start()
""".strip()

CHECK_FILE = "check.py"
#: Runs as a guest: compiles the program as the interpreter would, and reports errors in the same words.
CHECK = """
import os, sys
path = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "main.py")
with open(path, "rb") as file:
    source = file.read()
try:
    compile(source, path, "exec", dont_inherit=True)
except BaseException as error:
    sys.excepthook(type(error), error, None)
    sys.exit(1)
""".lstrip()


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python on this host. `has_site`: guests see its site-packages. `argv` is its cold start."""

    path: str
    version: tuple[int, ...]
    runtime_paths: tuple[str, ...]
    has_site: bool
    argv: tuple[str, ...] = ()


class PythonRuntime:
    """Runs Python with the base interpreter's standard library, or with an environment that the caller named."""

    name = "python"

    def version(self, config: ProcessConfig) -> str:
        return f"Python {'.'.join(map(str, find_interpreter(config).version))}"

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        interpreter = find_interpreter(config)
        files = {MAIN_FILE: code.encode()}
        return ProgramSpec(
            interpreter.argv,
            files,
            MAIN_FILE,
            interpreter.runtime_paths,
            "python",
            check=partial(_check, interpreter, files),
        )


def _check(interpreter: Interpreter, files: dict[str, bytes]) -> ProgramSpec:
    """Compiles the program as a guest, without running it."""
    argv = command_line(interpreter.path, interpreter.has_site, CHECK_FILE)
    files = {CHECK_FILE: CHECK.encode(), **files}
    return ProgramSpec(argv, files, CHECK_FILE, interpreter.runtime_paths, "python")


def command_line(path: str, has_site: bool, file: str = MAIN_FILE) -> tuple[str, ...]:
    """The cold start. `-s`: never the caller's user site. `-S`: no site-packages, unless they were requested.

    Not `-I` or `-E`: the environment is already clean, and PYTHON* variables in it come from the request.
    """
    return (path, "-s", *(() if has_site else ("-S",)), "-c", BOOT, f"{CODE_DIR}/{file}")


def find_interpreter(config: ProcessConfig) -> Interpreter:
    """`python_path` if given; with preloads the caller's own environment; else the base interpreter."""
    if config.python_path is not None:
        path = configured_program(os.fspath(config.python_path), "python_path")
    elif config.preload:
        path = own_interpreter()
    else:
        path = base_executable()
    has_site = config.python_path is not None or bool(config.preload)
    try:
        identity = stamp(path)
    except (OSError, ValueError):
        raise _no_interpreter(path) from None
    return _interpreter(identity, has_site)


def _no_interpreter(path: str) -> BackendUnavailable:
    return BackendUnavailable(f"no Python interpreter was found at {path!r}", hint=REMEDIES["python"])


@lru_cache(maxsize=32)
def _interpreter(identity: FileStamp, has_site: bool) -> Interpreter:
    path = identity[0]
    if not is_program(path):
        raise _no_interpreter(path)
    facts = _own_facts() if _is_base(path) else _facts(path)
    if facts.version < OLDEST:
        raise BackendUnavailable(
            f"{path} is Python {'.'.join(map(str, facts.version))}; guests need 3.9 or newer", hint=REMEDIES["python"]
        )
    # The interpreter's own path, because pyenv's shims are scripts.
    executable = facts.executable or path
    if facts.prefixes[0] == facts.prefixes[2]:
        # The name by which it was found matters only inside a virtual environment.
        executable = os.path.realpath(executable)
    paths = runtime_paths(executable, facts.prefixes, facts.libraries)
    return Interpreter(executable, facts.version, paths, has_site, command_line(executable, has_site))


def _is_base(path: str) -> bool:
    try:
        return path == base_executable()
    except BackendUnavailable:
        return False


@dataclass(frozen=True, slots=True)
class _Facts:
    """What an interpreter reports about itself. The prefixes are: own, own exec, base, base exec."""

    executable: str
    version: tuple[int, ...]
    prefixes: tuple[str, ...]
    libraries: tuple[str, ...]


def _own_facts() -> _Facts:
    """The base interpreter runs this line, so it need not be started to ask."""
    prefixes = (sys.base_prefix, sys.base_exec_prefix) * 2
    version_directory = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    libraries = (os.path.dirname(os.__file__), os.path.join(sys.base_exec_prefix, sys.platlibdir, version_directory))
    return _Facts(base_executable(), tuple(sys.version_info[:3]), prefixes, libraries)


def _facts(path: str) -> _Facts:
    import json

    try:
        # Site files (`*.pth`, sitecustomize) may print too.
        lines = query_tool([path, "-I", "-c", _QUESTION]).splitlines()
        said = json.loads(next(line.partition(" ")[2] for line in lines if line.startswith("WARMCELL ")))
    except (ValueError, StopIteration):
        raise BackendUnavailable(
            f"{path} does not answer like a Python interpreter", hint="correct python_path"
        ) from None
    return _Facts(said["executable"], tuple(said["version"]), tuple(said["prefixes"]), tuple(said["libraries"]))


def runtime_paths(executable: str, prefixes: tuple[str, ...], libraries: tuple[str, ...]) -> tuple[str, ...]:
    """The prefixes that are installations, and every directory that the executable's links pass through.

    Of a prefix that contains other things too (a home, a project), only the parts of Python.
    """
    wanted = [path for link in symlink_chain(executable) for path in visible_paths(link)]
    for prefix in prefixes:
        wanted += [prefix] if is_installation(prefix) else _parts_of(prefix)
    return beside_usr(path for path in (*wanted, *libraries) if os.path.exists(path))


def _parts_of(prefix: str) -> list[str]:
    """The marker of a virtual environment, and its module directories; on some systems `lib64` leads to `lib`."""
    libraries = [os.path.join(prefix, name) for name in ("lib", "lib64")]
    names = [(place, name) for place in libraries if os.path.isdir(place) for name in os.listdir(place)]
    versions = [os.path.join(place, name) for place, name in names if name.startswith("python")]
    return [os.path.join(prefix, "pyvenv.cfg"), *filter(os.path.isdir, versions)]
