"""Rust: one compile step, confined like the program, then the program."""

from __future__ import annotations

import os
from functools import lru_cache

from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import dataclass
from warmcell.enforcers.host import FileStamp, find_program, is_program, query_tool, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.plain import build_key
from warmcell.languages.program_spec import CODE_DIR, OUT_DIR, Build, ProgramSpec
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr, configured_program, visible_paths

#: Level 1 costs about as much compile time as level 0 does on small programs and makes loops ten times as fast;
#: level 2 takes a quarter longer to compile and gained nothing on what agents write.
FLAGS = tuple(
    """
    --edition=2021 --crate-name=main --crate-type=bin --color=never --error-format=human -Copt-level=1 -Cdebuginfo=0
    -Cstrip=debuginfo
    """.split()
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A rustc on this host, by its real path inside its toolchain."""

    path: str
    version: str
    runtime_paths: tuple[str, ...]


class RustRuntime:
    """Compiles one file against the standard library. The compiler's output is part of the result."""

    name = "rust"

    def version(self, config: ProcessConfig) -> str:
        return find_compiler(config).version

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        compiler = find_compiler(config)
        argv = (compiler.path, *FLAGS, "-o", f"{OUT_DIR}/main", f"{CODE_DIR}/main.rs")
        return ProgramSpec(
            argv=(f"{OUT_DIR}/main",),
            files={"main.rs": code.encode()},
            main_file="main.rs",
            runtime_paths=compiler.runtime_paths,
            build=Build(argv, artefact="main", cache_key=cache_key(code, compiler)),
        )


def cache_key(code: str, compiler: Compiler) -> str:
    """The same key only for the same text, compiler and switches."""
    return build_key("rust", code, compiler.path, compiler.version, FLAGS)


def find_compiler(config: ProcessConfig) -> Compiler:
    if config.rustc_path is not None:
        path: str | None = configured_program(os.fspath(config.rustc_path), "rustc_path")
    else:
        path = find_program("rustc")
    if path is None:
        raise BackendUnavailable("Rust needs rustc, which was not found on PATH", hint=REMEDIES["rust"])
    if find_program("cc") is None:
        raise BackendUnavailable("Rust needs a linker; cc was not found on PATH", hint="install gcc")
    return _compiler(stamp(path))


@lru_cache(maxsize=16)
def _compiler(identity: FileStamp) -> Compiler:
    path = identity[0]
    # PATH often has rustup's proxy, which needs a home directory; the compiler itself is in the sysroot.
    sysroot = os.path.realpath(query_tool([path, "--print", "sysroot"]))
    real = os.path.join(sysroot, "bin", "rustc")
    compiler = real if is_program(real) else os.path.realpath(path)
    return Compiler(
        compiler, query_tool([compiler, "-vV"]), beside_usr([*visible_paths(compiler), os.path.join(sysroot, "lib")])
    )
