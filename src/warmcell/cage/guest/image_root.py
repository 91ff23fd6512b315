"""The root of an image: its layers below a writable one, with the cage's places moved on top.

The image is not trusted. Its links are never followed here, and nothing is mounted before the place for it was opened
below the image's own root.
"""

from __future__ import annotations

import os
import posixpath

from ..linux import mounts
from ..linux.call_list import CallList, Value
from ..linux.mounts import AT_FDCWD, MS_NODEV, MS_NOSUID
from ..plan import LaunchPlan, is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Sequence, Tuple

#: On the scratch, in the old root: where the cage's places were mounted, and the directories of the overlay.
_SCRATCH, _PLACES, _UPPER, _WORK, _IMAGE = "/tmp", "/tmp/root", "upper", "work", "image"
#: Where an upper layer of the host is mounted, beside the others: it has the two directories already.
_DISK = "disk"
_ENOENT, _EBADF, _EEXIST = 2, 9, 17


def move_into(calls: CallList, plan: LaunchPlan, trees: Sequence[Value], attached: Sequence[Tuple[str, bool]]) -> None:
    """Mounts the image and moves the cage's places into it. The image is the working directory afterwards.

    The trees are the layers, and then the upper layer if the host has it.
    """
    _mount(calls, trees[: len(plan.layers)], trees[len(plan.layers) :])
    for path, content in plan.files:
        _write_file(calls, path, content)
    for place, is_directory in _outermost(plan, attached).items():
        _move(calls, place, is_directory)


def _mount(calls: CallList, layers: Sequence[Value], upper: Sequence[Value]) -> None:
    """With names relative to the scratch: the options of a mount have one page."""
    calls.begin_step("mount image")
    calls.call("chdir", _SCRATCH.encode())
    names = [f"l{number}" for number in range(len(layers))]
    for name, tree in zip(names, layers):  # noqa: B905  # `strict` came after Python 3.9
        calls.call("mkdirat", AT_FDCWD, name.encode(), 0o700)
        mounts.attach(calls, tree, AT_FDCWD, name)
    for name in (_IMAGE, _DISK) if upper else (_IMAGE, _UPPER, _WORK):
        calls.call("mkdirat", AT_FDCWD, name.encode(), 0o755)
    for tree in upper:
        mounts.attach(calls, tree, AT_FDCWD, _DISK)
    place = f"{_DISK}/" if upper else ""
    options = f"lowerdir={':'.join(reversed(names))},upperdir={place}{_UPPER},workdir={place}{_WORK},userxattr"
    mounts.add(calls, "overlay", _IMAGE, "overlay", MS_NOSUID | MS_NODEV, options)
    calls.call("chdir", _IMAGE.encode())


def _outermost(plan: LaunchPlan, attached: Sequence[Tuple[str, bool]]) -> Dict[str, bool]:
    """The places that are not inside another, which move with it, and whether each is a directory."""
    places = {"/dev": True, "/proc": True, **{path: True for path, _ in plan.scratch_dirs}, **dict(attached)}
    inner = {path for path in places for other in places if path != other and is_below(path, other)}
    return {path: is_directory for path, is_directory in places.items() if path not in inner}


def _move(calls: CallList, place: str, is_directory: bool) -> None:
    calls.begin_step("move into image", place)
    tree = mounts.copy_in_list(calls, _PLACES + place)
    _make_directories(calls, place if is_directory else posixpath.dirname(place))
    parent = mounts.open_parent(calls, place)
    if not is_directory:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        made = calls.call("openat", parent, _name(place), flags, 0o600, allowed_errno=_EEXIST)
        calls.call("close", made, allowed_errno=_EBADF)
    mounts.attach(calls, tree, parent, posixpath.basename(place))
    calls.call("close", parent)
    calls.call("close", tree)


def _write_file(calls: CallList, path: str, content: str) -> None:
    """In place of what the image has there."""
    calls.begin_step("write files", path)
    data = content.encode()
    _make_directories(calls, posixpath.dirname(path))
    parent = mounts.open_parent(calls, path)
    calls.call("unlinkat", parent, _name(path), 0, allowed_errno=_ENOENT)
    file = calls.call("openat", parent, _name(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    if data:
        calls.call("write", file, data, len(data), expected=len(data))
    calls.call("close", file)
    calls.call("close", parent)


def _make_directories(calls: CallList, path: str) -> None:
    """The directory and those above it, as far as the image lacks them."""
    if path == "/":
        return
    _make_directories(calls, posixpath.dirname(path))
    parent = mounts.open_parent(calls, path)
    calls.call("mkdirat", parent, _name(path), 0o755, allowed_errno=_EEXIST)
    calls.call("close", parent)


def _name(path: str) -> bytes:
    return os.fsencode(posixpath.basename(path))
