"""Go: one file, built in the cage with a cache of the standard library that no guest can write."""

from __future__ import annotations

import os
from functools import cache, lru_cache

from warmcell.core.errors import BackendUnavailable, ExecutionFailed
from warmcell.core.records import dataclass
from warmcell.core.slow_steps import report_slow_step
from warmcell.enforcers.host import FileStamp, find_program, query_tool, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.plain import ARTEFACT, build_key
from warmcell.languages.program_spec import CODE_DIR, OUT_DIR, Build, ProgramSpec
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr
from warmcell.lifetime.held_directories import (
    UNFINISHED_LIBRARIES,
    HeldDirectory,
    create_held_directory,
    find_abandoned,
    hold,
    make_cache,
    user_cache,
)
from warmcell.lifetime.own_modes import is_own_directory
from warmcell.lifetime.ownership import Lock

MAIN_FILE = "main.go"
_COMPILED_AT_FIRST_USE = "its standard library is compiled when Go is first used, which takes about a minute"
#: How many libraries of other versions to keep, 100 MB each.
_MOST_OTHERS = 1
_lock = Lock()
#: The libraries that this process uses, held so that no other process removes them. One in a temporary directory,
#: without a home directory, is removed by the next sweep after our exit.
_in_use: dict[GoToolchain, HeldDirectory] = {}

#: Compiled once for each Go version, because that takes a minute. Other packages of the standard library work too; they
#: are compiled with every program that imports them.
COMMON_PACKAGES = """
    bufio bytes cmp container/heap container/list container/ring context encoding/json errors fmt io maps math math/big
    math/bits math/cmplx math/rand os regexp slices sort strconv strings sync sync/atomic text/template time unicode
    unicode/utf8
""".split()
#: No network, modules, C compiler or host settings, and nothing that depends on file locations.
_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GO111MODULE": "off",
    "GOENV": "off",
    "GOFLAGS": "-trimpath",
    "GOPATH": "/nonexistent",
    "GOPROXY": "off",
    "GOTELEMETRY": "off",
    "GOTOOLCHAIN": "local",
}


@dataclass(frozen=True, slots=True)
class GoToolchain:
    """A Go on this host: the `go` command, its root, and its version line."""

    program: str
    root: str
    version: str


class GoRuntime:
    """Builds one file of package main, as `go run` would."""

    name = "go"

    def check(self, config: ProcessConfig) -> str:
        go = find_go()
        is_compiled = is_own_directory(_library_place(go))
        return go.program if is_compiled else f"{go.program}; {_COMPILED_AT_FIRST_USE}"

    def version(self, config: ProcessConfig) -> str:
        return find_go().version

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        go = find_go()
        library = standard_library(go)
        out, source = f"{OUT_DIR}/{ARTEFACT}", f"{CODE_DIR}/{MAIN_FILE}"
        argv = (*_settings(library), go.program, "build", "-o", out, source)
        return ProgramSpec(
            argv=(f"{OUT_DIR}/{ARTEFACT}",),
            files={MAIN_FILE: code.encode()},
            main_file=MAIN_FILE,
            runtime_paths=beside_usr([go.root, library]),
            build=Build(argv, ARTEFACT, build_key("go", code, go.program, go.version, _ENVIRONMENT)),
        )


def find_go() -> GoToolchain:
    path = find_program("go") or find_program("go", "/usr/local/go/bin:/usr/lib/go/bin")
    if path is None:
        raise BackendUnavailable("go needs the go command, which is not on PATH", hint=REMEDIES["go"])
    return _toolchain(stamp(path))


@lru_cache(maxsize=8)
def _toolchain(identity: FileStamp) -> GoToolchain:
    program = os.path.realpath(identity[0])
    return GoToolchain(program, os.path.realpath(_ask_go(program, "env", "GOROOT")), _ask_go(program, "version"))


def _ask_go(program: str, *words: str, library: str = "") -> str:
    prefix = _pdeathsig_prefix() if library else ()
    return query_tool([*prefix, *_settings(library or "/nonexistent"), program, *words], timeout=900)


@cache
def _pdeathsig_prefix() -> tuple[str, ...]:
    """A prefix for commands that take long: if this process is killed, so is the command."""
    setpriv = find_program("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv and _knows_pdeathsig(setpriv) else ()


def _knows_pdeathsig(setpriv: str) -> bool:
    try:
        return "--pdeathsig" in query_tool([setpriv, "--help"])
    except BackendUnavailable:
        return False


def _settings(cache: str) -> tuple[str, ...]:
    """A prefix for commands of Go that sets their environment. It is the same for every build."""
    return ("/usr/bin/env", *(f"{name}={value}" for name, value in {**_ENVIRONMENT, "GOCACHE": cache}.items()))


def standard_library(go: GoToolchain) -> str:
    """The directory with the compiled packages, created if this user has none yet. Guests see it read-only.

    Nothing of a guest goes into it, so that guests can neither learn nor leave anything there. From now on this process
    holds it, so that no other one removes it.
    """
    with _lock:
        held = _in_use.get(go)
        if held is None or not held.is_ours:  # a fork has no lock of its own
            place = _library_place(go)
            held = _in_use[go] = _hold_library(place) or _compile_library(go, place)
        return held.path


def _library_place(go: GoToolchain) -> str:
    return os.path.join(user_cache(), "go", build_key(go.program, go.version, _ENVIRONMENT, COMMON_PACKAGES)[:16])


def _hold_library(place: str) -> HeldDirectory | None:
    return hold(place, is_shared=True) if is_own_directory(place) else None


def _compile_library(go: GoToolchain, place: str) -> HeldDirectory:
    """Builds in a temporary directory and renames it: another process may do the same, and the first to finish wins."""
    import shutil

    report_slow_step("compiling Go's standard library (once per user, about a minute)")
    home = os.path.dirname(place)
    try:
        make_cache(home)
        _forget_others(home)
        held = create_held_directory(".go-", home)
    except OSError:
        held = create_held_directory("warmcell-go-")  # no home directory: for this process only
        place = held.path
    fresh = held.path
    is_private, is_kept = fresh == place, False
    try:
        there = set(_ask_go(go.program, "list", "std", library=fresh).split())
        packages = [name for name in COMMON_PACKAGES if name in there]  # older versions lack some
        _ask_go(go.program, "build", *packages, library=fresh)
        os.chmod(fresh, 0o755)
        is_kept = is_private
        if is_kept:
            return held
        os.rename(fresh, place)
    except OSError:
        if is_private or not is_own_directory(place):
            raise
    finally:
        if not is_kept:
            shutil.rmtree(fresh, ignore_errors=True)
            held.release()
    library = _hold_library(place)
    if library is None:
        raise ExecutionFailed("Go's standard library was removed by another process", hint="run it again")
    return library


def _forget_others(home: str) -> None:
    """Removes what a killed process left unfinished, and all but the latest library of other Go versions.

    Not those that a process uses. They are renamed first, so that half of one is never found.
    """
    import shutil

    for path in find_abandoned(home, UNFINISHED_LIBRARIES):
        shutil.rmtree(path, ignore_errors=True)
    kept = [entry for entry in os.scandir(home) if not entry.name.startswith(".")]
    for entry in sorted(kept, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime)[:-_MOST_OTHERS]:
        held = hold(entry.path)
        if held is not None:
            with held:
                unused = os.path.join(home, f"{UNFINISHED_LIBRARIES[0]}{os.urandom(8).hex()}")
                os.rename(entry.path, unused)
                shutil.rmtree(unused, ignore_errors=True)
