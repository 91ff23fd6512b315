"""The escape suite's view of a run from outside: how it ended, how long it took, and what it left behind."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers import PATIENCE, eventually

from warmcell.backends.process.backend import ProcessBackend
from warmcell.cage.linux.processes import descendants
from warmcell.core.errors import ExecutionTimeout, MemoryExceeded
from warmcell.core.types import ExecRequest, ExecResult, Limits
from warmcell.languages import go
from warmcell.languages.config import ProcessConfig
from warmcell.policy.model import SandboxPolicy
from warmcell.runner.cgroup_parent import group_parent

#: No warm cells: whatever exists after a run was left by that run.
ON_DEMAND = ProcessConfig(pool_size=0, pool_min=0)
#: Seconds for the start and the end of a run on a loaded machine. What a run is protected from takes minutes.
GRACE = PATIENCE
_MIB = 1 << 20
_MEMORY_SLACK = 40 * _MIB


@dataclass(frozen=True)
class Outcome:
    """A run's end as data: `status` is "ended", "timeout" or "memory"."""

    status: str
    result: ExecResult
    elapsed: float

    @property
    def stdout(self) -> str:
        return self.result.stdout

    @property
    def everything(self) -> str:
        """All text that the guest produced, to search for a secret."""
        return self.result.stdout + self.result.stderr + repr(self.result.denials)

    def report(self) -> dict[str, Any]:
        """Parses the guest's `attempt` lines: name -> "ok:<value>" or the name of the errno."""
        lines = [line for line in self.stdout.splitlines() if line.startswith('{"attempt":')]
        return {item["attempt"]: item["end"] for item in map(json.loads, lines)}

    def check_refused(self) -> dict[str, Any]:
        """Returns the report after checking that it is not empty and that no attempt succeeded."""
        report = self.report()
        assert report, f"the guest reported nothing: {self.result.stderr[-2000:]}"
        went_through = {name: end for name, end in report.items() if end.startswith("ok:")}
        assert not went_through, went_through
        return report


class Cage:
    """Runs payloads and checks that each returned in time."""

    def __init__(self, backend: ProcessBackend, cleanup: ExitStack, canary: Canary) -> None:
        self.default = backend
        self.canary = canary
        self._cleanup = cleanup

    def backend(self, policy: SandboxPolicy | None = None, **options: Any) -> ProcessBackend:
        """Creates a backend with another policy; it is closed before the invariants are checked."""
        options.setdefault("config", ON_DEMAND)
        return self._cleanup.enter_context(ProcessBackend(policy=policy, **options))

    def run(
        self,
        code: str,
        language: str = "python",
        *,
        timeout: float = 20.0,
        backend: ProcessBackend | None = None,
        stdin: bytes | None = None,
        env: dict[str, str] | None = None,
        **limits: Any,
    ) -> Outcome:
        request = ExecRequest(language, code, timeout, stdin, env=env or {}, limits=Limits(**limits))  # type: ignore[arg-type]
        started = time.monotonic()
        outcome = _execute(backend or self.default, request, started)
        assert outcome.elapsed < timeout + GRACE, f"returned {outcome.elapsed - timeout:.1f} s after its deadline"
        return outcome


def _execute(backend: ProcessBackend, request: ExecRequest, started: float) -> Outcome:
    try:
        result = backend.execute_blocking(request)
    except (ExecutionTimeout, MemoryExceeded) as limit:
        assert limit.result is not None
        status = "timeout" if isinstance(limit, ExecutionTimeout) else "memory"
        return Outcome(status, limit.result, time.monotonic() - started)
    return Outcome("ended", result, time.monotonic() - started)


class Canary:
    """A directory of the host that no guest may read or change, with a secret in it."""

    def __init__(self, root: Path) -> None:
        self.secret = f"canary-{os.urandom(12).hex()}"
        self.root = root
        root.mkdir()
        self.file = root / "secret.txt"
        self.file.write_text(self.secret)
        self.file.chmod(0o644)
        (root / "sub").mkdir()
        self._before = self._state()

    def _state(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for path in [self.root, *sorted(self.root.rglob("*"))]:
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = (status.st_ino, status.st_mode, status.st_uid, status.st_mtime_ns, content)
            assert not os.listxattr(path, follow_symlinks=False)
        return found

    def check(self) -> None:
        assert self._state() == self._before, "a host canary was touched"


@dataclass
class Belongings:
    """Everything that a run could leave behind, counted."""

    processes: set[int]
    descriptors: int
    mounts: int
    temporary: set[str]
    segments: int
    groups: set[str]
    resident: int = field(compare=False)
    inits: Counter[str] = field(compare=False)

    def is_no_more_than(self, before: Belongings) -> bool:
        """True if there is nothing new. There may be less: what an earlier test left idle may end at any time."""
        return (
            self.processes <= before.processes
            and self.descriptors <= before.descriptors
            and self.mounts <= before.mounts
            and self.temporary <= before.temporary
            and self.segments <= before.segments
            and self.groups <= before.groups
        )

    @classmethod
    def now(cls) -> Belongings:
        return cls(
            processes={
                pid for pid in descendants(os.getpid()) if not (is_zombie(pid) or _is_sleeper(pid) or _is_watcher(pid))
            },
            # Go's library is held as long as this program runs.
            descriptors=len(os.listdir("/proc/self/fd")) - len(go._in_use),
            mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
            groups=our_groups(),
            temporary=set(os.listdir(tempfile.gettempdir())),
            segments=_count_detached_segments(),
            resident=memory("VmRSS"),
            inits=count_inits(),
        )


def _count_detached_segments() -> int:
    """Shared memory of System V with no process attached. A browser beside us has some, and is attached to it."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return sum(line.split()[6] == "0" for line in lines)


def describe(pids: set[int]) -> str:
    """One line for each process: its parent, its name and its command line."""
    lines = []
    for pid in sorted(pids):
        try:
            parent, name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1], _name(pid)
            lines.append(f"{pid} of {parent}: {name} {Path(f'/proc/{pid}/cmdline').read_bytes()[:200]!r}")
        except OSError:
            lines.append(f"{pid}: gone")
    return "\n".join(lines)


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def count_inits() -> Counter[str]:
    """How many sleeping inits each zygote has. One that serves its next cell is normal."""
    found: Counter[str] = Counter()
    for pid in filter(_is_sleeper, descendants(os.getpid())):
        with suppress(OSError):  # it has just ended
            found[Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]] += 1
    return found


def _is_sleeper(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"init\0"
    except OSError:
        return False


def _is_watcher(pid: int) -> bool:
    """True for the watcher of a manager: a fork of it that lives from the first watched run until the manager exits."""
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"cage" in words and words == Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return False


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def our_groups() -> set[str]:
    """The control groups of cells, below this process's own."""
    parent = group_parent()
    bases = set(parent.directories.values()) if parent else set()
    return {entry.path for base in bases for entry in os.scandir(base) if entry.name.startswith("warmcell-")}


def memory(field_name: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field_name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {field_name}")


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def check_nothing_left(before: Belongings) -> None:
    """Fails if there is a new process, descriptor, mount, control group, temporary file or segment, or if memory grew."""
    if not eventually(lambda: Belongings.now().is_no_more_than(before)):
        after = Belongings.now()
        raise AssertionError(f"left behind: {before} -> {after}\n{describe(after.processes - before.processes)}")
    # A backend of another test may have several warm cells, with an init each.
    assert eventually(lambda: all(count <= max(1, before.inits[zygote]) for zygote, count in count_inits().items())), (
        "more than one init is left"
    )
    growth = memory("VmHWM") - before.resident
    assert growth < _MEMORY_SLACK, f"the supervisor grew by {growth // _MIB} MiB"
