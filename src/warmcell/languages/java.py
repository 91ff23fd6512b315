"""Java: one source file, compiled and run by the JDK's own launcher, with a heap that fits the run's memory."""

from __future__ import annotations

import os
from functools import lru_cache

from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import dataclass
from warmcell.enforcers.host import FileStamp, ask, find_program, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import CODE_DIR, MEMORY, Program
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr, shown_for

MAIN_FILE = "Main.java"

#: Half for the heap; the rest is for classes, compiled code, stacks and the compiler itself. Without `MaxRAM` the heap
#: would be sized by the host's memory, and the run would be killed for what the collector had no reason to collect.
SWITCHES = (f"-XX:MaxRAM={MEMORY}m", "-XX:MaxRAMPercentage=50", "-XX:+UseSerialGC", "-XX:-UsePerfData")


@dataclass(frozen=True, slots=True)
class Jdk:
    """A Java with a compiler on this host."""

    program: str
    runtime_paths: tuple[str, ...]


class JavaRuntime:
    """Runs the first class of the file, whatever it is called."""

    name = "java"

    def prepare(self, code: str, config: ProcessConfig) -> Program:
        jdk = find_jdk()
        argv = (jdk.program, *SWITCHES, f"{CODE_DIR}/{MAIN_FILE}")
        return Program(argv, {MAIN_FILE: code.encode()}, MAIN_FILE, jdk.runtime_paths)

    def version(self, config: ProcessConfig) -> str:
        return ask([find_jdk().program, "--version"])


def find_jdk() -> Jdk:
    path = find_program("java")
    if path is None:
        raise BackendUnavailable("java needs a JDK, and there is no java on PATH", hint=REMEDIES["java"])
    return _jdk(stamp(path))


@lru_cache(maxsize=8)
def _jdk(identity: FileStamp) -> Jdk:
    program = os.path.realpath(identity[0])
    home = os.path.dirname(os.path.dirname(program))
    if not os.path.exists(os.path.join(home, "bin", "javac")):
        raise BackendUnavailable(
            f"java needs a JDK, and {program} is a runtime without the compiler", hint=REMEDIES["java"]
        )
    return Jdk(program, beside_usr([*shown_for(program), *_settings(home)]))


def _settings(home: str) -> list[str]:
    """Where the settings really are: distributions keep them in /etc and put links into the installation."""
    conf = os.path.join(home, "conf")
    names = os.listdir(conf) if os.path.isdir(conf) else []
    return sorted({os.path.dirname(os.path.realpath(os.path.join(conf, name))) for name in names})
