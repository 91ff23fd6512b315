"""Archives that a guest made, unpacked on the host."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

#: A member that does not fit those before it, such as a file below another file.
_IN_THE_WAY = (FileExistsError, NotADirectoryError, IsADirectoryError)


def unpack_guest_tar(archive: bytes, target: Path) -> None:
    """Files and directories below `target`. Names that lead out of it are left out, and so are links and devices.

    So are sparse files, and the archive is not decompressed: a kilobyte could claim terabytes.
    The filters of `tarfile` keep links, and in many releases of Python a link leads out of the directory past them.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
        for member in opened:
            path = _place_in(target, member.name)
            if path is None:
                continue
            try:
                if member.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                elif member.isreg() and not member.issparse():
                    _write(opened, member, path)
            except _IN_THE_WAY:
                continue


def _place_in(target: Path, name: str) -> Path | None:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if name.startswith("/") or ".." in parts or "\0" in name else target.joinpath(*parts)


def _write(opened: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = opened.extractfile(member)
    assert content is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o755 if member.mode & 0o111 else 0o644), "wb") as file:
        shutil.copyfileobj(content, file)
