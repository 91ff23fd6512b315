"""The host's toolchains for programs that a sandbox starts by name: what to show of the host, and what goes on PATH.

Each language runtime finds its own; this is for `sh("cargo test")` and `exec("python", ...)`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.records import dataclass, replace
from warmcell.enforcers.host import find_program
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import find_interpreter
from warmcell.languages.toolchain import beside_usr, configured_program, is_installation, symlink_chain
from warmcell.lifetime.host_program import own_interpreter
from warmcell.policy.places import WORK_DIR, is_within

USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
#: By program: where its installer puts it, if it is not on PATH.
_TOOLCHAINS = {"node": "", "cargo": "", "go": "/usr/local/go/bin:/usr/lib/go/bin"}
_DEFAULT_TOOLCHAIN = re.compile(r'^default_toolchain\s*=\s*"([\w.+-]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostTools:
    """Directories that contain only installed files, to be shown read-only, and their program directories."""

    shown: tuple[str, ...] = ()
    path: tuple[str, ...] = USUAL_PATH

    def without(self, targets: Iterable[str]) -> HostTools:
        """Without the directories at which the policy shows something else."""
        taken = (WORK_DIR, *targets)
        return replace(self, shown=tuple(tree for tree in self.shown if not any(is_within(tree, at) for at in taken)))


def host_tools(config: ProcessConfig) -> HostTools:
    """Configured programs come first on PATH, as in a virtual environment; the host's toolchains come last."""
    shown, first = _find_named(config)
    trees = [tree for name, usual in _TOOLCHAINS.items() for tree in _tree_of(name, usual)]
    last = [os.path.join(tree, "bin") for tree in trees]
    return HostTools(beside_usr([*shown, *trees]), tuple(dict.fromkeys([*first, *USUAL_PATH, *last])))


def _find_named(config: ProcessConfig) -> tuple[list[str], list[str]]:
    """Problems with a configured program are reported by the run that needs it."""
    shown: list[str] = []
    path: list[str] = []
    try:
        if config.python_path is not None or config.preload:
            interpreter = find_interpreter(config)
            shown += interpreter.runtime_paths
            path.append(os.path.dirname(interpreter.path))
        for name in ("node_path", "rustc_path"):
            if (value := getattr(config, name)) is not None:
                program = os.path.realpath(configured_program(os.fspath(value), name))
                shown += _installation(program)
                path.append(os.path.dirname(program))
    except (SandboxError, OSError):
        return [], []
    return shown, path


def environment_of(config: ProcessConfig) -> str | None:
    """The virtual environment whose interpreter guests are forked from, if the caller chose one."""
    if config.python_path is not None:
        path = os.path.abspath(os.fspath(config.python_path))
    elif config.preload:
        path = own_interpreter()
    else:
        return None
    environment = os.path.dirname(os.path.dirname(path))
    return environment if os.path.isfile(os.path.join(environment, "pyvenv.cfg")) else None


def check_out_of_reach(config: ProcessConfig, is_writable: Callable[[str], bool]) -> None:
    """Refuses programs that guests could change: our own processes start them, outside of any cage."""
    named = {name: getattr(config, name) for name in ("python_path", "node_path", "rustc_path")}
    if config.preload and config.python_path is None:
        named["preload"] = own_interpreter()
    for name, value in named.items():
        path = None if value is None or os.sep not in os.fspath(value) else os.path.abspath(os.fspath(value))
        for link in symlink_chain(path) if path is not None else ():
            if is_writable(link) or is_writable(os.path.realpath(link)):
                raise InvalidRequest(
                    f"{link!r} lies in a directory that guests may write, and is started outside of the cage",
                    field=name,
                    hint="use one that lies elsewhere, or show that part of the directory read-only",
                )


def _tree_of(name: str, usual: str) -> Iterator[str]:
    found = find_program(name) or (find_program(name, usual) if usual else None)
    if found is None:
        return
    program = os.path.realpath(found)
    if os.path.basename(program) == "rustup":
        yield from _behind_rustup()
    elif os.path.dirname(program) not in USUAL_PATH:
        yield from _installation(program)


def _installation(program: str) -> list[str]:
    """The directory around a program's `bin`; none if it contains other things: a home is not shown for its `go`."""
    tree = os.path.dirname(os.path.dirname(program))
    is_tree = os.path.basename(os.path.dirname(program)) == "bin"
    return [tree] if is_tree and (is_installation(tree) or _is_go_root(tree)) else []


def _is_go_root(tree: str) -> bool:
    """Go's own directory contains sources and tests, so it looks like a project."""
    return all(os.path.exists(os.path.join(tree, name)) for name in ("VERSION", "src/runtime", "pkg/tool"))


def _behind_rustup() -> Iterator[str]:
    """rustup's proxies need a home directory and the network; the toolchain itself needs neither."""
    home = os.environ.get("RUSTUP_HOME") or os.path.expanduser("~/.rustup")
    try:
        with open(os.path.join(home, "settings.toml"), encoding="utf-8") as file:
            chosen = _DEFAULT_TOOLCHAIN.search(file.read())
    except (OSError, ValueError):
        return
    name = os.environ.get("RUSTUP_TOOLCHAIN") or (chosen[1] if chosen else "")
    tree = os.path.join(home, "toolchains", name)
    if name and "/" not in name and is_installation(tree):
        yield os.path.realpath(tree)
