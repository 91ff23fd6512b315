"""`warmcell image`: the store of root file systems, from the command line."""

from __future__ import annotations

import argparse
import codecs
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from warmcell.core.light import Closing
from warmcell.core.lines import one_line
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.messages import CLEAR_LINE, is_quiet, is_terminal, size_text
from warmcell.interfaces.cli.render import print_json
from warmcell.interfaces.cli.store_actions import MANY, Action, print_freed, print_success, print_table, run_action

if TYPE_CHECKING:
    from warmcell.images import Image, ImageStore
    from warmcell.images.progress import BuildProgress, ImageProgress

#: `sha256:` and twelve digits, as Docker shows.
_DIGEST_SHOWN = 19
_LONGEST_LINE = 4000
_VERBS = {"copy": "copying", "pull": "pulling", "unpack": "unpacking"}
_EVERY_SECONDS = 0.1
_BAR = 24


def image(arguments: argparse.Namespace) -> int:
    return run_action("image", _ACTIONS, _open_store, arguments)


def _open_store(arguments: argparse.Namespace) -> ImageStore:
    from warmcell.images import ImageStore

    mirrors: dict[str, list[str]] = {}
    for text in arguments.mirror:
        registry, equals, host = text.partition("=")
        mirrors.setdefault(registry if equals else "docker.io", []).append(host if equals else text)
    return ImageStore(arguments.store, mirrors=mirrors)


def _list(store: ImageStore, arguments: argparse.Namespace) -> None:
    images = store.list()
    if arguments.json:
        print_json([_to_plain(found) for found in images])
        return
    rows = [(found.name, _short(found.digest), size_text(found.size), _creation_date(found)) for found in images]
    print_table(("NAME", "DIGEST", "SIZE", "CREATED"), rows)


def _import(store: ImageStore, arguments: argparse.Namespace) -> None:
    path, *name = arguments.operands
    with ProgressLine() as progress:
        made = store.import_(path, name[0] if name else None, on_progress=progress.show)
    _print_image(made, arguments)


def _read_password() -> str:
    if sys.stdin is None:
        raise UsageError("stdin is closed", "write the password to it, or leave --password-stdin out")
    return sys.stdin.readline().rstrip("\n")


def _pull(store: ImageStore, arguments: argparse.Namespace) -> None:
    password = _read_password() if arguments.password_stdin else None
    with ProgressLine() as progress:
        made = store.pull(
            arguments.operands[0],
            username=arguments.username,
            password=password,
            plain_http=arguments.plain_http,
            on_progress=progress.show,
        )
    _print_image(made, arguments)


def _build(store: ImageStore, arguments: argparse.Namespace) -> None:
    with BuildLines() as lines:
        made = store.build(
            arguments.operands[0],
            os.path.abspath(arguments.file) if arguments.file else "Dockerfile",
            name=arguments.tag,
            build_args=options.environment(arguments.build_arg, "--build-arg"),
            target=arguments.target,
            policy=options.policy([], [], arguments.allow_domain, arguments.policy),
            on_progress=lines.show,
            uses_cache=not arguments.no_cache,
        )
    _print_image(made, arguments)


def _tag(store: ImageStore, arguments: argparse.Namespace) -> None:
    _print_image(store.tag(*arguments.operands), arguments)


def _inspect(store: ImageStore, arguments: argparse.Namespace) -> None:
    """Print everything known about an image, always as JSON."""
    found = store.get(arguments.operands[0])
    print_json(_to_plain(found) | {"layers": list(found.layer_paths)})


def _export(store: ImageStore, arguments: argparse.Namespace) -> None:
    reference, path = arguments.operands
    store.export(reference, path, format=arguments.format)
    print_success({"path": path}, "", arguments.json)


def _remove(store: ImageStore, arguments: argparse.Namespace) -> None:
    print_freed(sum(store.remove(reference) for reference in arguments.operands), arguments.json)


def _print_image(made: Image, arguments: argparse.Namespace) -> None:
    print_success(_to_plain(made), f"{made.name}  {_short(made.digest)}  {size_text(made.size)}", arguments.json)


def _to_plain(found: Image) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "name": found.name,
        "digest": found.digest,
        "size": found.size,
        "created": found.created and found.created.isoformat(),
        "architecture": found.architecture,
        "config": asdict(found.config),
    }


def _short(digest: str) -> str:
    return digest[:_DIGEST_SHOWN]


def _creation_date(found: Image) -> str:
    return found.created.strftime("%Y-%m-%d %H:%M") if found.created else "unknown"


_ACTIONS: dict[str, Action[ImageStore]] = {
    "list": Action(_list),
    "import": Action(_import, "PATH [NAME]", 1, 2),
    "pull": Action(_pull, "REFERENCE", 1, 1),
    "build": Action(_build, "[-f FILE] [-t NAME] DIR", 1, 1, prints_output=True),
    "tag": Action(_tag, "REFERENCE NAME", 2, 2),
    "inspect": Action(_inspect, "REFERENCE", 1, 1),
    "export": Action(_export, "REFERENCE PATH", 2, 2),
    "remove": Action(_remove, "REFERENCE...", 1, MANY),
    "prune": Action(lambda store, arguments: print_freed(store.prune(), arguments.json)),
}


class BuildLines(Closing):
    """`with BuildLines() as lines:` and `lines.show` as `on_progress`. Writes to stderr."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._number = 0
        self._seconds = 0.0

    def show(self, progress: BuildProgress) -> None:
        self._number = progress.number
        if progress.state == "output":
            self._seconds = progress.seconds
            self._show_output(self._decoder.decode(progress.data))
            return
        self.close()
        self._write(_describe(progress))

    def _show_output(self, text: str) -> None:
        """Print whole lines. A step's output is not trusted, so control characters are escaped."""
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], ""
        for line in lines:
            self._write(f"{self._seconds:.3f} {one_line(line.rstrip())}")

    def close(self) -> None:
        """Complete the last line; further steps may follow."""
        if self._rest:
            self._show_output("\n")

    def _write(self, text: str) -> None:
        _write(f"#{self._number} {text}\n")


def _describe(progress: BuildProgress) -> str:
    match progress.state:
        case "started":
            stage = f"{progress.stage} " if progress.stage else ""
            return f"[{stage}{progress.number}/{progress.total}] {one_line(progress.text)}"
        case "cached":
            return "CACHED"
        case "failed":
            return f"ERROR after {progress.seconds:.1f}s"
        case _:
            return f"DONE {progress.seconds:.1f}s"


def _write(text: str) -> None:
    if sys.stderr is not None and not is_quiet():
        sys.stderr.write(text)
        sys.stderr.flush()


class ProgressLine(Closing):
    """`with ProgressLine() as progress:` and `progress.show` as `on_progress`. Writes to stderr."""

    def __init__(self) -> None:
        self._is_terminal = is_terminal()
        self._next = 0.0
        self._step = ""

    def close(self) -> None:
        if self._is_terminal:
            _write(CLEAR_LINE)

    def show(self, progress: ImageProgress) -> None:
        step = f"{_VERBS[progress.step]} {_short_name(progress.what)}"
        if not self._is_terminal:
            if step != self._step:
                _write(f"{step} ({size_text(progress.total)})\n")
        elif step != self._step or time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_SECONDS
            done = min(1.0, progress.done / max(progress.total, 1))
            bar = ("=" * int(done * _BAR)).ljust(_BAR)
            _write(f"{CLEAR_LINE}{step} [{bar}] {size_text(progress.done)} of {size_text(progress.total)}")
        self._step = step


def _short_name(what: str) -> str:
    """Twelve digits of a digest, or the end of a path."""
    return what[7:19] if what.startswith("sha256:") else one_line(what)[-40:]
