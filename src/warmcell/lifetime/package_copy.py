"""A private copy of our package for a server, because an upgrade replaces the installed files while it runs.

Modules that the server imports or starts later must be of the version that it has loaded, so they come from the copy.
Call it before modules are imported that keep paths of the package.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import warmcell.cage
from warmcell.cage import bundle
from warmcell.lifetime.bytecode import write_bytecode
from warmcell.lifetime.temporary_directory import temporary_directory

#: Larger files become links to the installed ones: WebAssembly modules, which servers do not run.
_MAX_COPIED = 1 << 20
_PACKAGE = "warmcell"
_PREFIX_VARIABLE = "PYTHONPYCACHEPREFIX"
PutFile = Callable[[str, str], None]


@contextmanager
def use_package_copy() -> Iterator[None]:
    """Within the block, modules are imported from a new copy, and `warmcell.__path__` leads there.

    Raises `OSError` if the copy cannot be made. It is removed at the end of the block, or by the next start of a server
    if this one is killed.
    """
    installed = os.path.dirname(warmcell.cage.__path__[0])
    with temporary_directory("code") as root:
        _copy_package(installed, root)
        _redirect_imports(installed, f"{root}/{_PACKAGE}")
        sys.path.insert(0, root)
        try:
            with _bytecode_beside_sources():
                yield
        finally:
            sys.path.remove(root)
            _redirect_imports(f"{root}/{_PACKAGE}", installed)


@contextmanager
def _bytecode_beside_sources() -> Iterator[None]:
    """Ignores PYTHONPYCACHEPREFIX, here and in children: byte code elsewhere would outlive the copy."""
    prefix, sys.pycache_prefix = sys.pycache_prefix, None
    variable = os.environ.pop(_PREFIX_VARIABLE, None)
    try:
        yield
    finally:
        sys.pycache_prefix = prefix
        if variable is not None:
            os.environ[_PREFIX_VARIABLE] = variable


def _copy_package(installed: str, root: str) -> None:
    """Copies the package and its .dist-info directory, which contains the version."""
    put_file = _choose_method(f"{installed}/__init__.py", f"{root}/link")
    _copy_directory(installed, f"{root}/{_PACKAGE}", put_file)
    beside = os.path.dirname(installed)
    for name in os.listdir(beside):
        if name.startswith(f"{_PACKAGE}-") and name.endswith(".dist-info"):
            _copy_directory(f"{beside}/{name}", f"{root}/{name}", put_file)


def _choose_method(source: str, target: str) -> PutFile:
    """Hard links if possible, in a quarter of the time. Safe, because installers unlink files before they replace them.

    Most systems refuse hard links to files that belong to another user and cannot be written.
    """
    try:
        os.link(source, target)
    except OSError:
        return _copy_file
    os.unlink(target)
    return _link_file


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # this file belongs to another user
        _copy_file(source, target)


def _copy_directory(source: str, target: str, put_file: PutFile) -> None:
    write_bytecode(source)  # in the source directory, so that the next server need not compile again
    os.mkdir(target)
    os.chmod(target, 0o755)  # undo the umask
    with os.scandir(source) as entries:
        for entry in entries:
            if ".pyc." in entry.name:  # another process writes it, and renames it at any moment
                continue
            path = f"{target}/{entry.name}"
            _copy_directory(entry.path, path, put_file) if entry.is_dir() else put_file(entry.path, path)


def _copy_file(source: str, target: str) -> None:
    """Copies a file with its modification time, which byte code and bundles are checked against."""
    with open(source, "rb") as original:
        found = os.fstat(original.fileno())
        if found.st_size > _MAX_COPIED:
            os.symlink(source, target)
            return
        with open(target, "xb") as copy:
            copy.write(original.read())
            copy.flush()
            os.fchmod(copy.fileno(), stat.S_IMODE(found.st_mode) | 0o600)
            os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def _redirect_imports(before: str, after: str) -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE and hasattr(module, "__path__"):
            module.__path__[:] = [_replace_start(path, before, after) for path in module.__path__]
    if bundle.descriptors():
        bundle.stop_using()
        bundle.use(after, _PACKAGE, "")


def _replace_start(path: str, before: str, after: str) -> str:
    return after + path[len(before) :] if path == before or path.startswith(f"{before}/") else path
