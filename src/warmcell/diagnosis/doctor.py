"""Examines this host by attacking our own cage in it, now: a protection counts only if an attack on it just failed."""

from __future__ import annotations

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
from warmcell.core.events import untold
from warmcell.core.types import ExecRequest, ExecResult, Language, Limits
from warmcell.languages.config import ProcessConfig
from warmcell.languages.row import LanguageRow
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.held_directories import writable_place
from warmcell.lifetime.temporary_directory import temporary_directory
from warmcell.policy.model import SandboxPolicy


@dataclass(frozen=True, slots=True)
class Row:
    """One protection: `status` is works, weaker or missing; `remedy` is the exact thing to do, if there is one."""

    name: str
    status: str
    mechanism: str | None = None
    proof: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """`default_available`: whether `ProcessBackend()` works here with everything that it promises."""

    rows: list[Row]
    default_available: bool


class Patient:
    """A backend under attack, and the canaries that the attacks are after."""

    def __init__(self, backend: ProcessBackend, spawnless: ProcessBackend) -> None:
        self.backend = backend
        self.spawnless = spawnless
        self.enforced = self.run("pass").enforced

    def run(self, code: str, timeout: float = 5, limits: Limits | None = None, *, spawn: bool = True) -> ExecResult:
        request = ExecRequest(Language.PYTHON, code, timeout, limits=limits)
        return (self.backend if spawn else self.spawnless).execute_blocking(request)


Attack = Callable[[Patient], tuple[bool, str | None, str]]


def _attempt(statement: str) -> str:
    """Guest code that prints "held" when the statement is refused."""
    return f"try:\n    {statement}\n    print('broken')\nexcept OSError as e: print('held', e.errno)"


def host_files(patient: Patient) -> tuple[bool, str | None, str]:
    with temporary_directory("doctor") as directory:
        canary = os.path.join(directory, "canary")
        with open(canary, "w") as file:
            file.write("canary")
        os.chmod(directory, 0o755)
        read = patient.run(_attempt(f"open({canary!r}).read()")).stdout
        write = patient.run(_attempt(f"open({directory + '/new'!r}, 'w')")).stdout
        is_untouched = os.listdir(directory) == ["canary"]
    held = read.startswith("held") and write.startswith("held") and is_untouched
    return held, patient.enforced.filesystem_read, "a guest could neither read nor write a file of the host"


def host_environment(patient: Patient) -> tuple[bool, str | None, str]:
    name, value = "WARMCELL_DOCTOR_CANARY", secrets.token_hex(8)
    os.environ[name] = value
    try:
        shown = patient.run("import os; print(os.environ, open('/proc/self/environ').read())").stdout
    finally:
        del os.environ[name]
    return value not in shown, patient.enforced.environment, "a variable of this process was not in the guest's"


def descriptors(patient: Patient) -> tuple[bool, str | None, str]:
    with tempfile.TemporaryFile(dir=writable_place()) as file:
        os.set_inheritable(file.fileno(), True)
        code = "import os\nfor n in range(3, 64):\n    try: os.fstat(n); print(n)\n    except OSError: pass"
        found = patient.run(code).stdout
    return found == "", "close_range", "an inheritable descriptor of this process was not in the guest"


def host_processes(patient: Patient) -> tuple[bool, str | None, str]:
    code = "import os\nprint(sum(name.isdigit() for name in os.listdir('/proc')))"
    held = patient.run(code).stdout in ("1\n", "2\n")
    return held, "pid namespace", "the guest saw only its own processes"


def host_network(patient: Patient) -> tuple[bool, str | None, str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(0.05)
        port = server.getsockname()[1]
        connect = f"socket.create_connection(('127.0.0.1', {port}), 1)"
        patient.run(f"import socket\n{_attempt(connect)}")
        try:
            server.accept()
            held = False
        except TimeoutError:
            held = True
    return held, patient.enforced.network, "a server on this host's loopback saw no connection"


def abstract_sockets(patient: Patient) -> tuple[bool, str | None, str]:
    name = f"warmcell-doctor-{secrets.token_hex(8)}"
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("\0" + name)
        server.listen()
        connect = f"socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r})"
        shown = patient.run(f"import socket\n{_attempt(connect)}").stdout
    mechanism = f"{patient.enforced.network}{' + Landlock' if patient.enforced.syscalls else ''}"
    return shown.startswith("held"), mechanism, "an abstract socket of this process was out of reach"


def privileges(patient: Patient) -> tuple[bool, str | None, str]:
    code = (
        "wanted = ('Uid', 'Cap', 'NoNewPrivs', 'Seccomp:')\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(wanted)])"
    )
    shown = patient.run(code).stdout
    held = shown.count("0000000000000000") == 5 and "'1000'" in shown and shown.strip().endswith("'1', '2']")
    return held, "user namespace, capset, no_new_privs", "no capability, no way to gain one, not root"


_CALLS = ("mount", "unshare", "ptrace", "bpf", "keyctl", "io_uring_setup", "setns")


def system_calls(patient: Patient) -> tuple[bool, str | None, str]:
    from warmcell.cage.linux.syscalls import NUMBERS

    numbers = {name: NUMBERS[name] for name in _CALLS}
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, n in {numbers!r}.items():\n"
        "    libc.syscall(n, -1, -1, -1, -1, -1); print(ctypes.get_errno())\n"
    )
    errors = patient.run(code).stdout.split()
    held = len(errors) == len(numbers) and set(errors) <= {"1", "38"}
    return held, patient.enforced.syscalls, f"{', '.join(numbers)} were refused"


def new_processes(patient: Patient) -> tuple[bool, str | None, str]:
    shown = patient.run(f"import os\n{_attempt('os.fork()')}", spawn=False)
    return shown.stdout == "held 1\n", "seccomp", "with allow_process_spawn off, fork was refused"


def memory(patient: Patient) -> tuple[bool, str | None, str]:
    limits = Limits(memory_mb=48)
    try:
        patient.run("x = [bytearray(1 << 20) for _ in range(400)]", limits=limits)
    except MemoryExceeded:
        return True, patient.enforced.memory, "a guest that allocated 400 MB was stopped at 48 MB"
    return False, patient.enforced.memory, "a guest of 48 MB allocated 400 MB"


def processes(patient: Patient) -> tuple[bool, str | None, str]:
    code = (
        "import os, time\nn = 0\n"
        "try:\n    while n < 64:\n        if os.fork() == 0: time.sleep(2); os._exit(0)\n        n += 1\n"
        "except OSError: pass\nprint(n, flush=True)"
    )
    started = int(patient.run(code, limits=Limits(processes=8)).stdout or 64)
    return started <= 8, patient.enforced.processes, f"of 64 processes, {started} could be started"


def disk(patient: Patient) -> tuple[bool, str | None, str]:
    code = "f = open('/tmp/x', 'wb', 0)\n" + _attempt("[f.write(bytes(1 << 20)) for _ in range(64)]")
    shown = patient.run(code, limits=Limits(disk_mb=8)).stdout
    return shown.startswith("held"), patient.enforced.disk, "a guest of 8 MB could not write 64 MB"


def output(patient: Patient) -> tuple[bool, str | None, str]:
    result = patient.run("import sys; sys.stdout.write('x' * 100_000)", limits=Limits(output_bytes=1000))
    return len(result.stdout_bytes) == 1000, patient.enforced.output, "100,000 bytes were cut to 1,000"


def deadline(patient: Patient) -> tuple[bool, str | None, str]:
    code = "import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(30)"
    started = time.monotonic()
    try:
        patient.run(code, timeout=0.5)
    except ExecutionTimeout:
        took = time.monotonic() - started
        return took < 2.5, patient.enforced.timeout, f"a guest with a daemon was gone after {took:.1f} s of 0.5 s"
    return False, patient.enforced.timeout, "a guest outlived its deadline"


def cpu(patient: Patient) -> tuple[bool, str | None, str]:
    started = time.monotonic()
    try:
        patient.run("while True: pass", timeout=10, limits=Limits(cpu_seconds=0.3))
    except ExecutionTimeout as stopped:
        took = time.monotonic() - started
        return stopped.clock == "cpu", patient.enforced.cpu, f"a spinning guest was stopped after {took:.1f} s"
    return False, patient.enforced.cpu, "a spinning guest ended by itself"


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
    """Every row is the outcome of something that was tried while this ran. Attacks count as nobody's runs."""
    try:
        with untold():
            return _examine()
    except OSError as error:  # so few descriptors that not even our own files can be opened
        raise host_failure(error, "examine this host") from None


def _examine() -> Report:
    try:
        with (
            ProcessBackend(ProcessConfig(pool_size=0), enforcer="native") as backend,
            ProcessBackend(ProcessConfig(pool_size=0), enforcer="native", policy=SandboxPolicy()) as spawnless,
        ):
            patient = Patient(backend, spawnless)
            rows = [Row("native cage", "works", "namespaces + Landlock + seccomp", "a guest ran in it")]
            rows += [_row(name, attack, patient) for name, attack in ATTACKS]
    except SandboxError as error:
        return _examine_without_cage(Row("native cage", "missing", None, error.message, error.hint))
    return Report([*rows, *_optional_rows()], all(row.status != "missing" for row in rows))


def _examine_without_cage(missing: Row) -> Report:
    """What `ProcessBackend()` takes instead is attacked in its place, as far as it promises to hold."""
    rows: list[Row] = []
    try:
        with ProcessBackend(ProcessConfig(pool_size=0)) as backend:
            patient = Patient(backend, backend)
            rows = [_row(name, attack, patient) for name, attack in ATTACKS if name not in _OF_THE_CAGE_ALONE]
    except SandboxError:
        pass  # said by the rows of the cage and of bubblewrap
    is_available = bool(rows) and all(row.status != "missing" for row in rows)
    rows += [
        Row(name, "missing", None, "only the native cage keeps this", missing.remedy) for name in _OF_THE_CAGE_ALONE
    ]
    return Report([missing, *(rows if is_available else ()), *_optional_rows()], is_available)


_OF_THE_CAGE_ALONE = ("privileges", "system calls", "new processes", "process limit")


def _row(name: str, attack: Attack, patient: Patient) -> Row:
    try:
        held, mechanism, proof = attack(patient)
    except (SandboxError, OSError) as error:
        reason = _typed(error, "prepare it")
        return Row(name, "missing", None, f"the attack could not be run: {reason.message}", reason.hint)
    if not held:
        return Row(name, "missing", mechanism, f"the attack succeeded; it should be that {proof}", "please report this")
    is_weaker = mechanism == "supervisor" and name == "memory limit"
    remedy = (
        "run under a delegated cgroup, e.g. `systemd-run --user --scope -p Delegate=yes ...`" if is_weaker else None
    )
    return Row(name, "weaker" if is_weaker else "works", mechanism, proof, remedy)


def _optional_rows() -> list[Row]:
    """What is not needed, but good to have."""
    from warmcell.languages.registry import all_rows

    return [_bubblewrap(), *(_toolchain(row) for row in all_rows() if row.backend == "process"), _wasm()]


def _bubblewrap() -> Row:
    from warmcell.enforcers.registry import get_enforcer

    try:
        get_enforcer("bubblewrap").probe()
    except (SandboxError, OSError) as error:
        reason = _typed(error, "try it")
        return Row("bubblewrap (optional)", "missing", None, reason.message, reason.hint)
    return Row("bubblewrap (optional)", "works", "bwrap", "a child looked around in its cage and found nothing")


def _toolchain(language: LanguageRow) -> Row:
    from warmcell.languages.registry import language_runtime, language_version

    name, config = f"language {language.name}", ProcessConfig()
    try:
        program = language_runtime(language.name).prepare("0", config)
        version = language_version(language.name, config)
    except (SandboxError, OSError) as error:
        reason = _typed(error, "look for it")
        return Row(name, "missing", None, reason.message, reason.hint or language.remedy or None)
    return Row(name, "works", version or None, f"found as {(program.build or program).argv[0]}")


def _typed(error: SandboxError | OSError, doing: str) -> SandboxError:
    return error if isinstance(error, SandboxError) else host_failure(error, doing)


def _wasm() -> Row:
    from importlib.util import find_spec

    if find_spec("wasmtime") is None:
        return Row("language wasm", "missing", None, "wasmtime is not installed", 'pip install "warmcell[wasm]"')
    return Row("language wasm", "works", "wasmtime", "installed")
