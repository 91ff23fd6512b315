"""`warmcell workspace`: directories that outlast sandboxes, and their snapshots, from the command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import SessionBusy
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.messages import are_terminals, size_text
from warmcell.interfaces.cli.render import print_json
from warmcell.interfaces.cli.store_actions import MANY, Action, print_freed, print_success, print_table, run_action

if TYPE_CHECKING:
    from warmcell.workspaces import SnapshotInfo, WorkspaceHandle, WorkspaceStore

_STOP_SECONDS = 10.0


def workspace(arguments: argparse.Namespace) -> int:
    return run_action("workspace", _ACTIONS, _open_store, arguments)


def _open_store(arguments: argparse.Namespace) -> WorkspaceStore:
    from warmcell.workspaces import WorkspaceStore

    return WorkspaceStore(arguments.store)


def _create(store: WorkspaceStore, arguments: argparse.Namespace) -> None:
    from warmcell.workspaces import Manifest

    manifest = Manifest() if arguments.manifest is None else Manifest.from_file(arguments.manifest)
    name = arguments.operands[0] if arguments.operands else arguments.name
    _print_workspace(store.provision(manifest, name), arguments)


def _list(store: WorkspaceStore, arguments: argparse.Namespace) -> None:
    found, snapshots = store.list(), store.snapshots()
    if arguments.json:
        described = [_describe(info) for info in snapshots]
        print_json({"workspaces": [_to_plain(item) for item in found], "snapshots": described})
        return
    print_table(("WORKSPACE", "STATE", "CREATED"), [(item.name, item.state, _date(item.created)) for item in found])
    if snapshots:
        print()
        names = {item.id: item.name for item in found}
        rows = []
        for info in snapshots:
            source, stored = names.get(info.workspace, "removed"), size_text(info.stored_bytes)
            rows.append((info.id, info.name or "", source, _date(info.created), stored))
        print_table(("SNAPSHOT", "NAME", "WORKSPACE", "CREATED", "STORED"), rows)


def _open(store: WorkspaceStore, arguments: argparse.Namespace) -> int:
    """Run a command in the workspace, or an interactive shell."""
    (name,) = arguments.operands
    if arguments.args:
        return _run_command(store, name, arguments.args, arguments)
    if not are_terminals(sys.stdin, sys.stdout):
        raise UsageError("a shell needs a terminal", f"warmcell workspace open {name} -- COMMAND")
    from warmcell.interfaces.cli.interactive_shell import run_shell

    settings = store.get(name).settings
    with store.use_directory(name, arguments.snapshot or None) as directory:
        given = {"image": settings.get("image"), "env": settings.get("env") or {}}
        return asyncio.run(run_shell({"work_dir": directory, "track_changes": False} | given))


def _run_command(store: WorkspaceStore, name: str, command: list[str], arguments: argparse.Namespace) -> int:
    sandbox = store.start(name)
    try:
        out, err = (partial(print, end="", file=stream, flush=True) for stream in (sys.stdout, sys.stderr))
        result = sandbox.exec(command[0], command[1:], on_stdout=out, on_stderr=err)
    finally:
        store.stop(name, arguments.snapshot or None)
    return result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)


def _stop(store: WorkspaceStore, arguments: argparse.Namespace) -> None:
    """Stop a workspace, even one that another `warmcell workspace open` runs."""
    name = arguments.operands[0]
    if store.get(name).state == "running":
        _end_other(store, name)
    taken = store.stop(name, arguments.snapshot or None)
    print_success({"snapshot": taken}, taken or "", arguments.json)


def _end_other(store: WorkspaceStore, name: str) -> None:
    pid = store.find_user(name)
    if pid is None:
        return
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        if b"workspace" not in words or b"open" not in words:
            raise SessionBusy(f"the workspace {name!r} is used by process {pid}", hint="end that program first")
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return
    deadline = time.monotonic() + _STOP_SECONDS
    while store.find_user(name) == pid and time.monotonic() < deadline:
        time.sleep(0.02)


def _snapshot(store: WorkspaceStore, arguments: argparse.Namespace) -> None:
    taken = store.snapshot(arguments.operands[0], arguments.name)
    print_success({"id": taken, "skipped": list(taken.skipped)}, taken, arguments.json)
    for path in () if arguments.json else taken.skipped:
        print(f"skipped: {path}", file=sys.stderr)


def _resume(store: WorkspaceStore, arguments: argparse.Namespace) -> None:
    _print_workspace(store.resume(arguments.operands[0], arguments.name), arguments)


def _export(store: WorkspaceStore, arguments: argparse.Namespace) -> None:
    source, path = arguments.operands
    store.export(source, path)
    print_success({"path": path}, "", arguments.json)


def _remove(store: WorkspaceStore, arguments: argparse.Namespace) -> None:
    for name in arguments.operands:
        store.remove(name)
    print_freed(store.compact(), arguments.json)


def _print_workspace(made: WorkspaceHandle, arguments: argparse.Namespace) -> None:
    print_success(_to_plain(made), made.name, arguments.json)


def _to_plain(found: WorkspaceHandle) -> dict[str, Any]:
    return {"id": found.id, "name": found.name, "state": found.state, "created": found.created}


def _describe(info: SnapshotInfo) -> dict[str, Any]:
    names = ("id", "name", "workspace", "created", "files", "total_bytes", "stored_bytes")
    return {name: getattr(info, name) for name in names}


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


_ACTIONS: dict[str, Action[WorkspaceStore]] = {
    "create": Action(_create, "[NAME]", 0, 1),
    "list": Action(_list),
    "open": Action(_open, "NAME [-- COMMAND...]", 1, 1),
    "stop": Action(_stop, "NAME", 1, 1),
    "snapshot": Action(_snapshot, "NAME", 1, 1),
    "resume": Action(_resume, "SNAPSHOT", 1, 1),
    "export": Action(_export, "NAME|SNAPSHOT PATH", 2, 2),
    "remove": Action(_remove, "NAME|SNAPSHOT...", 1, MANY),
}
