"""Go: one file, built in the cage with a cache of the standard library that no guest can write to."""

from __future__ import annotations

import os
from functools import lru_cache

from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import dataclass
from warmcell.enforcers.host import FileStamp, ask, find_program, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.plain import ARTEFACT, build_key
from warmcell.languages.program import CODE_DIR, OUT_DIR, Build, Program
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr
from warmcell.lifetime.held_directories import (
    UNFINISHED_LIBRARIES,
    HeldDirectory,
    abandoned,
    cache_place,
    make_cache,
    make_held,
)

MAIN_FILE = "main.go"
#: Libraries of other versions that are kept beside the one in use, 100 MB each.
_MOST_OTHERS = 1
#: Where there is no home directory: held while we live, and swept by the next start.
_for_this_process: list[HeldDirectory] = []

#: Compiled once for each Go, because compiling them anew takes a minute. Other packages of the standard library work
#: too; they are compiled with every program that asks for them.
COMMON_PACKAGES = """
    bufio bytes cmp container/heap container/list container/ring context encoding/json errors fmt io maps math math/big
    math/bits math/cmplx math/rand os regexp slices sort strconv strings sync sync/atomic text/template time unicode
    unicode/utf8
""".split()
#: No network, no modules, no C compiler, no settings of the host, nothing that depends on where files lie.
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
    """A Go on this host: the `go` command, where it is installed, and what it says of itself."""

    program: str
    root: str
    version: str


class GoRuntime:
    """Builds one file of package main, as `go run` would."""

    name = "go"

    def check(self, config: ProcessConfig) -> None:
        find_go()

    def version(self, config: ProcessConfig) -> str:
        return find_go().version

    def prepare(self, code: str, config: ProcessConfig) -> Program:
        go = find_go()
        cache = standard_library(go)
        out, source = f"{OUT_DIR}/{ARTEFACT}", f"{CODE_DIR}/{MAIN_FILE}"
        argv = (*_settings(cache), go.program, "build", "-o", out, source)
        return Program(
            argv=(f"{OUT_DIR}/{ARTEFACT}",),
            files={MAIN_FILE: code.encode()},
            main_file=MAIN_FILE,
            runtime_paths=beside_usr([go.root, cache]),
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


def _ask_go(program: str, *words: str, cache: str = "/nonexistent") -> str:
    return ask([*_settings(cache), program, *words], timeout=900)


def _settings(cache: str) -> tuple[str, ...]:
    """A command line that goes before one of Go's. (A build's own environment is the same for everybody.)"""
    return ("/usr/bin/env", *(f"{name}={value}" for name, value in {**_ENVIRONMENT, "GOCACHE": cache}.items()))


@lru_cache(maxsize=8)
def standard_library(go: GoToolchain) -> str:
    """The directory with the compiled packages, made if this user has none yet. Guests see it read-only.

    Nothing of a guest goes into it, so that none can learn or leave anything there.
    """
    name = build_key(go.program, go.version, _ENVIRONMENT, COMMON_PACKAGES)[:16]
    place = os.path.join(cache_place(), "go", name)
    return place if _is_ours(place) else _compiled(go, place)


def _is_ours(directory: str) -> bool:
    try:
        status = os.lstat(directory)
    except OSError:
        return False
    return os.path.isdir(directory) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _compiled(go: GoToolchain, place: str) -> str:
    """Made beside its place and moved there whole: another process may be at it too, and the first to end wins."""
    import shutil

    home = os.path.dirname(place)
    try:
        make_cache(home)
        _forget_others(home)
        held = make_held(".go-", home)
    except OSError:
        held = make_held("warmcell-go-")  # no home directory: for this process only
        place = held.path
    fresh = held.path
    try:
        there = set(_ask_go(go.program, "list", "std", cache=fresh).split())
        packages = [name for name in COMMON_PACKAGES if name in there]  # some came with a later Go
        _ask_go(go.program, "build", *packages, cache=fresh)
        os.chmod(fresh, 0o755)
        if fresh != place:
            os.rename(fresh, place)
    except OSError:
        if not _is_ours(place):
            raise
    finally:
        if fresh != place:
            shutil.rmtree(fresh, ignore_errors=True)
            held.let_go()
        else:
            _for_this_process.append(held)
    return place


def _forget_others(home: str) -> None:
    """What a killed process left unfinished, and all but the last of those that were made for another Go."""
    import shutil

    for path in abandoned(home, UNFINISHED_LIBRARIES):
        shutil.rmtree(path, ignore_errors=True)
    kept = [entry for entry in os.scandir(home) if not entry.name.startswith(".")]
    for entry in sorted(kept, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime)[:-_MOST_OTHERS]:
        shutil.rmtree(entry.path, ignore_errors=True)
