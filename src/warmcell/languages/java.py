"""Java: one source file, compiled and run by the JDK's own launcher, with a heap that fits the run's memory limit.

A program that runs often is compiled first, into a jar, by the same rules: any file name, the first class runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, lru_cache

import warmcell.guest
from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import dataclass
from warmcell.enforcers.host import FileStamp, find_program, query_tool, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.plain import build_key
from warmcell.languages.program_spec import CODE_DIR, MEMORY, OUT_DIR, Build, ProgramSpec
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr, visible_paths

MAIN_FILE = "Main.java"
BUILDER_FILE = "JavaBuilder.java"
JAR = "main.jar"

#: Half for the heap; the rest is for classes, compiled code, stacks and the compiler itself. Without `MaxRAM` the heap
#: would be sized by the host's memory, and the run would be killed for garbage that was not collected in time.
SWITCHES = (f"-XX:MaxRAM={MEMORY}m", "-XX:MaxRAMPercentage=50", "-XX:+UseSerialGC", "-XX:-UsePerfData")


@dataclass(frozen=True, slots=True)
class Jdk:
    """A Java with a compiler on this host."""

    program: str
    runtime_paths: tuple[str, ...]


class JavaRuntime:
    """Runs the first class of the file, whatever its name."""

    name = "java"

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        jdk = find_jdk()
        argv = (jdk.program, *SWITCHES, f"{CODE_DIR}/{MAIN_FILE}")
        files = {MAIN_FILE: code.encode()}
        return ProgramSpec(argv, files, MAIN_FILE, jdk.runtime_paths, ahead=_make_built_spec(jdk, files))

    def version(self, config: ProcessConfig) -> str:
        return query_tool([find_jdk().program, "--version"])


def _make_built_spec(jdk: Jdk, files: Mapping[str, bytes]) -> ProgramSpec:
    builder = _builder()
    jar = f"{OUT_DIR}/{JAR}"
    compiling = (jdk.program, *SWITCHES, f"{CODE_DIR}/{BUILDER_FILE}", f"{CODE_DIR}/{MAIN_FILE}", jar)
    build = Build(compiling, JAR, build_key("java", *stamp(jdk.program)))
    argv = (jdk.program, *SWITCHES, "-jar", jar)
    return ProgramSpec(argv, {BUILDER_FILE: builder, **files}, MAIN_FILE, jdk.runtime_paths, build=build)


@cache
def _builder() -> bytes:
    with open(os.path.join(warmcell.guest.__path__[0], BUILDER_FILE), "rb") as file:
        return file.read()


def find_jdk() -> Jdk:
    path = find_program("java")
    if path is None:
        raise BackendUnavailable("java needs a JDK; java was not found on PATH", hint=REMEDIES["java"])
    return _jdk(stamp(path))


@lru_cache(maxsize=8)
def _jdk(identity: FileStamp) -> Jdk:
    program = os.path.realpath(identity[0])
    home = os.path.dirname(os.path.dirname(program))
    if not os.path.exists(os.path.join(home, "bin", "javac")):
        raise BackendUnavailable(
            f"java needs a JDK, and {program} is a runtime without the compiler", hint=REMEDIES["java"]
        )
    return Jdk(program, beside_usr([*visible_paths(program), *_settings(home)]))


def _settings(home: str) -> list[str]:
    """The real directories of the settings: distributions keep them in /etc and put links into the installation."""
    conf = os.path.join(home, "conf")
    names = os.listdir(conf) if os.path.isdir(conf) else []
    return sorted({os.path.dirname(os.path.realpath(os.path.join(conf, name))) for name in names})
