"""Examines this host by attacking our own cage: a protection counts only if an attack on it has just failed."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import ExecutionTimeout, MemoryExceeded, SandboxError
from warmcell.core.events import no_op
from warmcell.core.types import ExecRequest, ExecResult, Language, Limits
from warmcell.diagnosis.gpu import examine_gpus
from warmcell.diagnosis.rows import Row
from warmcell.languages.config import ProcessConfig
from warmcell.languages.row import LanguageRow
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.held_directories import writable_directory
from warmcell.lifetime.temporary_directory import temporary_directory
from warmcell.policy.model import SandboxPolicy

#: A busy host may take seconds to start a guest and to end it. Only where a protection fails does it take this long.
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Report:
    """`default_available`: whether `ProcessBackend()` works on this host with all its protections."""

    rows: list[Row]
    default_available: bool


class Target:
    """The backend under attack."""

    def __init__(self, backend: ProcessBackend, spawnless: ProcessBackend) -> None:
        self.backend = backend
        self.spawnless = spawnless
        self.enforced = self.run("pass").enforced

    def run(
        self, code: str, timeout: float = _PATIENCE_SECONDS, limits: Limits | None = None, *, spawn: bool = True
    ) -> ExecResult:
        request = ExecRequest(Language.PYTHON, code, timeout, limits=limits)
        return (self.backend if spawn else self.spawnless).execute_blocking(request)


Attack = Callable[[Target], tuple[bool, str | None, str]]


def _attempt(statement: str) -> str:
    """Guest code that prints "held" if the statement is refused."""
    return f"try:\n    {statement}\n    print('broken')\nexcept OSError as e: print('held', e.errno)"


def host_files(target: Target) -> tuple[bool, str | None, str]:
    with temporary_directory("doctor") as directory:
        canary = os.path.join(directory, "canary")
        with open(canary, "w") as file:
            file.write("canary")
        os.chmod(directory, 0o755)
        read = target.run(_attempt(f"open({canary!r}).read()")).stdout
        write = target.run(_attempt(f"open({directory + '/new'!r}, 'w')")).stdout
        is_untouched = os.listdir(directory) == ["canary"]
    held = read.startswith("held") and write.startswith("held") and is_untouched
    return held, target.enforced.filesystem_read, "a guest could neither read nor write a file of the host"


def host_environment(target: Target) -> tuple[bool, str | None, str]:
    name, value = "WARMCELL_DOCTOR_CANARY", secrets.token_hex(8)
    os.environ[name] = value
    try:
        shown = target.run("import os; print(os.environ, open('/proc/self/environ').read())").stdout
    finally:
        del os.environ[name]
    return value not in shown, target.enforced.environment, "a variable of this process was not in the guest's"


def descriptors(target: Target) -> tuple[bool, str | None, str]:
    with tempfile.TemporaryFile(dir=writable_directory()) as file:
        os.set_inheritable(file.fileno(), True)
        code = "import os\nfor n in range(3, 64):\n    try: os.fstat(n); print(n)\n    except OSError: pass"
        found = target.run(code).stdout
    return found == "", "close_range", "an inheritable descriptor of this process was not in the guest"


def host_processes(target: Target) -> tuple[bool, str | None, str]:
    code = "import os\nprint(sum(name.isdigit() for name in os.listdir('/proc')))"
    held = target.run(code).stdout in ("1\n", "2\n")
    return held, "pid namespace", "the guest saw only its own processes"


def host_network(target: Target) -> tuple[bool, str | None, str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(0.05)
        port = server.getsockname()[1]
        connect = f"socket.create_connection(('127.0.0.1', {port}), 1)"
        target.run(f"import socket\n{_attempt(connect)}")
        try:
            server.accept()
            held = False
        except TimeoutError:
            held = True
    return held, target.enforced.network, "a server on this host's loopback saw no connection"


def abstract_sockets(target: Target) -> tuple[bool, str | None, str]:
    name = f"warmcell-doctor-{secrets.token_hex(8)}"
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("\0" + name)
        server.listen()
        connect = f"socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r})"
        shown = target.run(f"import socket\n{_attempt(connect)}").stdout
    mechanism = f"{target.enforced.network}{' + Landlock' if target.enforced.syscalls else ''}"
    return shown.startswith("held"), mechanism, "an abstract socket of this process was out of reach"


def privileges(target: Target) -> tuple[bool, str | None, str]:
    code = (
        "wanted = ('Uid', 'Cap', 'NoNewPrivs', 'Seccomp:')\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(wanted)])"
    )
    shown = target.run(code).stdout
    held = shown.count("0000000000000000") == 5 and "'1000'" in shown and shown.strip().endswith("'1', '2']")
    return held, "user namespace, capset, no_new_privs", "no capability, no way to gain one, not root"


_CALLS = ("mount", "unshare", "ptrace", "bpf", "keyctl", "io_uring_setup", "setns")


def system_calls(target: Target) -> tuple[bool, str | None, str]:
    from warmcell.cage.linux.syscalls import NUMBERS

    numbers = {name: NUMBERS[name] for name in _CALLS}
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, n in {numbers!r}.items():\n"
        "    libc.syscall(n, -1, -1, -1, -1, -1); print(ctypes.get_errno())\n"
    )
    errors = target.run(code).stdout.split()
    held = len(errors) == len(numbers) and set(errors) <= {"1", "38"}
    return held, target.enforced.syscalls, f"{', '.join(numbers)} were refused"


def new_processes(target: Target) -> tuple[bool, str | None, str]:
    shown = target.run(f"import os\n{_attempt('os.fork()')}", spawn=False)
    return shown.stdout == "held 1\n", "seccomp", "with allow_process_spawn off, fork was refused"


def memory(target: Target) -> tuple[bool, str | None, str]:
    limits = Limits(memory_mb=48)
    try:
        target.run("x = [bytearray(1 << 20) for _ in range(400)]", limits=limits)
    except MemoryExceeded:
        return True, target.enforced.memory, "a guest that allocated 400 MB was stopped at 48 MB"
    return False, target.enforced.memory, "a guest of 48 MB allocated 400 MB"


def processes(target: Target) -> tuple[bool, str | None, str]:
    code = (
        "import os, time\nn = 0\n"
        "try:\n    while n < 64:\n        if os.fork() == 0: time.sleep(2); os._exit(0)\n        n += 1\n"
        "except OSError: pass\nprint(n, flush=True)"
    )
    started = int(target.run(code, limits=Limits(processes=8)).stdout or 64)
    return started <= 8, target.enforced.processes, f"of 64 processes, {started} could be started"


def disk(target: Target) -> tuple[bool, str | None, str]:
    code = "f = open('/tmp/x', 'wb', 0)\n" + _attempt("[f.write(bytes(1 << 20)) for _ in range(64)]")
    shown = target.run(code, limits=Limits(disk_mb=8)).stdout
    return shown.startswith("held"), target.enforced.disk, "a guest of 8 MB could not write 64 MB"


def output(target: Target) -> tuple[bool, str | None, str]:
    result = target.run("import sys; sys.stdout.write('x' * 100_000)", limits=Limits(output_bytes=1000))
    return len(result.stdout_bytes) == 1000, target.enforced.output, "100,000 bytes were cut to 1,000"


def deadline(target: Target) -> tuple[bool, str | None, str]:
    code = f"import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep({3 * _PATIENCE_SECONDS})"
    started = time.monotonic()
    try:
        target.run(code, timeout=0.5)
    except ExecutionTimeout:
        took = time.monotonic() - started
        proof = f"a guest with a daemon was gone after {took:.1f} s of 0.5 s"
        return took < _PATIENCE_SECONDS, target.enforced.timeout, proof
    return False, target.enforced.timeout, "a guest outlived its deadline"


def cpu(target: Target) -> tuple[bool, str | None, str]:
    started = time.monotonic()
    try:
        target.run("while True: pass", limits=Limits(cpu_seconds=0.3))
    except ExecutionTimeout as stopped:
        took = time.monotonic() - started
        return stopped.clock == "cpu", target.enforced.cpu, f"a spinning guest was stopped after {took:.1f} s"
    return False, target.enforced.cpu, "a spinning guest ended by itself"


ATTACKS: tuple[tuple[str, Attack], ...] = (
    ("host files", host_files),
    ("host environment", host_environment),
    ("descriptors", descriptors),
    ("host processes", host_processes),
    ("host network", host_network),
    ("abstract sockets", abstract_sockets),
    ("privileges", privileges),
    ("system calls", system_calls),
    ("new processes", new_processes),
    ("memory limit", memory),
    ("process limit", processes),
    ("disk limit", disk),
    ("output limit", output),
    ("deadline", deadline),
    ("cpu limit", cpu),
)


def examine() -> Report:
    """Try every protection now. The attacks emit no events."""
    try:
        with no_op():
            return _examine()
    except OSError as error:  # too few descriptors to open even our own files
        raise host_failure(error, "examine this host") from None


def _examine() -> Report:
    try:
        with (
            ProcessBackend(ProcessConfig(pool_size=0), enforcer="native") as backend,
            ProcessBackend(ProcessConfig(pool_size=0), enforcer="native", policy=SandboxPolicy()) as spawnless,
        ):
            target = Target(backend, spawnless)
            rows = [Row("native cage", "works", "namespaces + Landlock + seccomp", "a guest ran in it")]
            rows += [_row(name, attack, target) for name, attack in ATTACKS]
    except SandboxError as error:
        return _examine_without_cage(Row("native cage", "missing", None, error.message, error.hint))
    return Report([*rows, *_optional_rows()], all(row.status != "missing" for row in rows))


def _examine_without_cage(missing: Row) -> Report:
    """Attack what `ProcessBackend()` falls back to, without the protections that only the native cage has."""
    rows: list[Row] = []
    try:
        with ProcessBackend(ProcessConfig(pool_size=0)) as backend:
            target = Target(backend, backend)
            rows = [_row(name, attack, target) for name, attack in ATTACKS if name not in _NATIVE_ONLY]
    except SandboxError:
        pass  # the rows of the native cage and bubblewrap say why
    is_available = bool(rows) and all(row.status != "missing" for row in rows)
    rows += [Row(name, "missing", None, "only the native cage enforces this", missing.remedy) for name in _NATIVE_ONLY]
    return Report([missing, *(rows if is_available else ()), *_optional_rows()], is_available)


_NATIVE_ONLY = ("privileges", "system calls", "new processes", "process limit")


def _row(name: str, attack: Attack, target: Target) -> Row:
    try:
        held, mechanism, proof = attack(target)
    except (SandboxError, OSError) as error:
        return _missing(name, error, "prepare it", "the attack could not be run: ")
    if not held:
        return Row(name, "missing", mechanism, f"the attack succeeded; expected: {proof}", "please report this")
    if mechanism == "supervisor" and name == "memory limit":
        remedy = "run under a delegated cgroup, e.g. `systemd-run --user --scope -p Delegate=yes ...`"
        return Row(name, "weaker", mechanism, proof, remedy)
    return Row(name, "works", mechanism, proof)


def _optional_rows() -> list[Row]:
    """Optional features: images, bubblewrap, GPUs and the languages."""
    from warmcell.languages.registry import all_rows

    return [
        _images(),
        _bubblewrap(),
        *examine_gpus(),
        *(_toolchain(row) for row in all_rows() if row.backend == "process"),
        _wasm(),
    ]


def _images() -> Row:
    """Run the smallest program that we have, which exits when its stdin ends, in an image of its own."""
    from warmcell.cage.linux import sleeper
    from warmcell.images import ImageStore

    try:
        with temporary_directory("doctor") as directory:
            root = os.path.join(directory, "root")
            os.mkdir(root)
            with open(os.path.join(root, "program"), "wb") as file:
                file.write(sleeper.program())
                os.fchmod(file.fileno(), 0o755)
            image = ImageStore(os.path.join(directory, "store")).import_(root, "doctor:1")
            with ProcessBackend(ProcessConfig(pool_size=0), image=image) as backend:
                request = ExecRequest(Language.COMMAND, "/program", _PATIENCE_SECONDS)
                asyncio.run(backend.execute_command(("/program",), "/", request))
    except (SandboxError, OSError) as error:
        return _missing("images (optional)", error, "try it")
    return Row("images (optional)", "works", "overlay", "a program ran in the root of an image")


def _bubblewrap() -> Row:
    from warmcell.enforcers.registry import get_enforcer

    try:
        get_enforcer("bubblewrap").probe()
    except (SandboxError, OSError) as error:
        return _missing("bubblewrap (optional)", error, "try it")
    return Row("bubblewrap (optional)", "works", "bwrap", "a child in its cage found nothing of the host")


def _toolchain(language: LanguageRow) -> Row:
    from warmcell.languages.registry import find_toolchain, language_version

    name, config = f"language {language.name}", ProcessConfig()
    try:
        place = find_toolchain(language.name, config)
        version = language_version(language.name, config)
    except (SandboxError, OSError) as error:
        return _missing(name, error, "look for it", remedy=language.remedy)
    return Row(name, "works", version or None, f"found as {place}" if place else "found")


def _missing(name: str, error: SandboxError | OSError, doing: str, before: str = "", remedy: str | None = None) -> Row:
    reason = error if isinstance(error, SandboxError) else host_failure(error, doing)
    return Row(name, "missing", None, before + reason.message, reason.hint or remedy or None)


def _wasm() -> Row:
    from importlib.util import find_spec

    from warmcell.toolbox.runtime import REMEDY, has_modules

    if find_spec("wasmtime") is None:
        return Row("language wasm", "missing", None, "wasmtime is not installed", REMEDY)
    if not has_modules():
        proof = "installed; the shell of 'warmcell sh' needs the package warmcell-toolbox, which is not"
        return Row("language wasm", "works", "wasmtime", proof, REMEDY)
    return Row("language wasm", "works", "wasmtime", "installed, with the toolbox")
