"""Errors for a store that this user may not read or write."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from warmcell.core.errors import BackendUnavailable

_OTHER = "or use another store: `--store DIR`, `serve --images DIR`, `ImageStore(DIR)`"
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def explain_access(store: str) -> Iterator[None]:
    """Turn EACCES, EPERM and EROFS for files of the store into `BackendUnavailable`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED or not _is_of_store(error, store):
            raise
        raise _refusal(store, error.errno, os.fsdecode(error.filename or "")) from error


def check_access(store: str) -> None:
    """Raise unless the store can be opened. Locking would report it as locked by another program."""
    if not os.access(store, os.R_OK | os.X_OK):
        raise _refusal(store, errno.EACCES, store)


def _is_of_store(error: OSError, store: str) -> bool:
    """Relative names are files of a layer, which are opened relative to their directory."""
    if not isinstance(error.filename, str | bytes) or error.errno == errno.EROFS:
        return True
    path = os.fsdecode(error.filename)
    return not os.path.isabs(path) or f"{path}/".startswith(f"{store}/") or f"{store}/".startswith(f"{path}/")


def _refusal(store: str, number: int, place: str) -> BackendUnavailable:
    at = f" ({place})" if os.path.isabs(place) and place != store else ""
    if number == errno.EROFS:
        hint = f"mount it writable, {_OTHER}"
    else:
        hint = f"give the directory to user {os.geteuid()}, {_OTHER}"
    return BackendUnavailable(f"cannot use the image store {store}: {os.strerror(number).lower()}{at}", hint=hint)
