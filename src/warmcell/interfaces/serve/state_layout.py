"""`layout.json`: which servers can use a state, checked before one starts."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.state_encryption import StateCipher
from warmcell.lifetime.held_directories import HeldDirectory, hold, temporary_place
from warmcell.lifetime.own_modes import make_directories
from warmcell.workspace.untrusted_files import open_regular, parse_json
from warmcell.workspaces.snapshots.objects import sync_directory, sync_file

#: With a key, version 1 encrypted records and variables, but not files.
_PLAIN_VERSION, _ENCRYPTED_VERSION = 1, 2
_MAX_BYTES = 4096
_OTHER_DIRECTORY = "or with another directory"


class _Layout(NamedTuple):
    version: int
    workers: int
    #: The fingerprint of the key.
    key: str | None


def hold_state(directory: str, workers: int, key: str | None = None) -> HeldDirectory:
    """For the whole server: one at a time, with the same number of workers and key. Raises `InvalidRequest`."""
    fingerprint = StateCipher(key).fingerprint
    wanted = _Layout(_PLAIN_VERSION if fingerprint is None else _ENCRYPTED_VERSION, workers, fingerprint)
    try:
        make_directories(os.path.abspath(directory))
        held = hold(directory)
    except OSError as error:
        raise InvalidRequest(f"cannot use {directory!r}: {error}", field="state") from None
    if held is None:
        raise InvalidRequest(f"{directory!r} is in use by another server or user", field="state")
    try:
        if fingerprint is not None:
            _check_temporary_place(directory)
        _check(directory, _read_layout(directory, wanted), wanted)
    except (OSError, ValueError, KeyError, TypeError) as error:
        held.let_go()
        raise InvalidRequest(f"cannot use {directory!r}: {error}", field="state") from None
    except BaseException:
        held.let_go()
        raise
    return held


def _check(directory: str, written: _Layout, wanted: _Layout) -> None:
    if written.workers != wanted.workers:
        hint = f"start it with --workers {written.workers}, {_OTHER_DIRECTORY}"
        what = f"was written by a server with {written.workers} workers"
    elif written.key != wanted.key:
        how = "without a key" if written.key is None else "with another key" if wanted.key else "with a key"
        hint = f"start it with --state-key FILE or WARMCELL_STATE_KEY as before, {_OTHER_DIRECTORY}"
        what = f"was written {how}"
    elif written.version != wanted.version:
        hint = "start it with another directory, or with the version of Warmcell that wrote it"
        what = f"has the layout {written.version}, not {wanted.version}"
    else:
        return
    raise InvalidRequest(f"{directory!r} {what}", field="state", hint=hint)


def _check_temporary_place(directory: str) -> None:
    """Files of running sandboxes are plain."""
    state, place = os.path.realpath(directory), os.path.realpath(temporary_place())
    if os.path.commonpath((state, place)) == state:
        reason = f"the temporary directory {place!r} is in {directory!r}, where everything is encrypted"
        raise InvalidRequest(reason, field="state", hint="set TMPDIR to a directory elsewhere")


def _read_layout(directory: str, wanted: _Layout) -> _Layout:
    """That of the servers that wrote the state; a new state gets this one."""
    path = os.path.join(directory, "layout.json")
    if not os.path.lexists(path):
        draft = f"{path}.new"
        with open(draft, "w", encoding="ascii") as file:
            json.dump(wanted._asdict(), file)
        sync_file(draft)
        os.replace(draft, path)
        sync_directory(directory)
    with open(open_regular(path, "state"), "rb") as file:
        found: Any = parse_json(file.read(_MAX_BYTES))
    key = found.get("key") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not (key is None or isinstance(key, str)):
        raise ValueError("layout.json is damaged")
    return _Layout(int(found["version"]), int(found["workers"]), key)
