"""A busy program, killed at some moment, and what is left of it after the next start of the same user.

`scripts/kill-at-random` does it as often as one likes; the test a few times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import warmcell
from warmcell.cage.linux.processes import descendants

_SOURCE = os.path.dirname(os.path.dirname(warmcell.__file__))
_SECONDS = 60.0

#: Runs, snapshots and builds in sandboxes and backends of every class, without end.
_BUSY = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from warmcell import ProcessBackend, Sandbox, ExecRequest
def sandboxes(backend):
    while True:
        with Sandbox(backend=backend) as sandbox:
            sandbox.write_file("a/b/c.txt", "x")
            sandbox.snapshot()
            sandbox.sh("mkdir -p d/e; chmod 0 d; echo x >f")
def backends(enforcer, language, code):
    while True:
        with ProcessBackend(enforcer=enforcer) as backend:
            for number in range(3):
                backend.execute_blocking(ExecRequest(language, code.replace("SEED", str(number)), 20))
work = [(sandboxes, "process"), (sandboxes, "wasm"), (backends, "landlock", "command", "mkdir -p a/b; chmod 0 a; echo x"),
        (backends, "bubblewrap", "python", "print(1)"), (backends, "auto", "c", "int main(void) { return SEED; }")]
for function, *arguments in work:
    threading.Thread(target=function, args=arguments, daemon=True).start()
print("up", flush=True)
threading.Event().wait()
"""
_NEXT = """
import sys
sys.path.insert(0, sys.argv[1])
from warmcell import ProcessBackend, ExecRequest
with ProcessBackend() as backend:
    print(backend.execute_blocking(ExecRequest("c", "int main(void) { return 7; }", 60)).exit_code)
"""


class KilledPrograms:
    """Programs that share a temporary directory and a cache, both empty at first."""

    def __init__(self, place: Path, seed: int = 21) -> None:
        self._place = place
        (place / "tmp").mkdir()
        places = {"TMPDIR": str(place / "tmp"), "XDG_CACHE_HOME": str(place / "cache")}
        self._env = {**os.environ, **places}
        self._moments = random.Random(seed)
        self._killed: list[int] = []
        #: Directories that existed right after a kill. If there were none, the test proved nothing.
        self.seen = 0

    def kill_one(self) -> None:
        """Kills a program and returns when none of its processes is left."""
        command = [sys.executable, "-c", _BUSY, _SOURCE]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(command, env=self._env, stdout=pipe, stderr=null, text=True) as program:
            assert program.stdout is not None and program.stdout.readline() == "up\n"
            _await(lambda: bool(self.directories()), "the program did nothing")
            time.sleep(self._moments.uniform(0, 1.5))
            processes = [program.pid, *descendants(program.pid)]
            program.send_signal(signal.SIGKILL)
        self._killed.append(program.pid)
        self.seen += len(self.directories())
        _await(lambda: not any(map(_is_alive, processes)), "processes are left")

    def start_another(self) -> None:
        command = [sys.executable, "-c", _NEXT, _SOURCE]
        after = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        assert after.stdout == "7\n", after.stderr

    def leftovers(self) -> list[str]:
        return self.directories() + self._groups()

    def directories(self) -> list[str]:
        found = [str(path) for path in (self._place / "tmp").iterdir() if path.name.startswith("warmcell")]
        caches = self._place / "cache" / "warmcell"
        return found + [str(path) for path in caches.glob("*/.*")] + [str(path) for path in caches.glob("*/build-*")]

    def _groups(self) -> list[str]:
        """Control groups that the killed programs created."""
        names = tuple(f"warmcell.home.{pid}." for pid in self._killed)
        tree = os.walk("/sys/fs/cgroup")
        return [os.path.join(folder, name) for folder, found, _ in tree for name in found if name.startswith(names)]


def _is_alive(pid: int) -> bool:
    """True if the process can still run: neither ended nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _await(condition: object, otherwise: str) -> None:
    assert callable(condition)
    until = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < until, otherwise
        time.sleep(0.02)
