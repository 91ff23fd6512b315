"""A scope of the user's systemd, which makes one on request where a login session may not make groups itself."""

from __future__ import annotations

import os
import select

from warmcell.core.light import suppress
from warmcell.lifetime.ownership import own_until_exit
from warmcell.runner.cgroups import ROOT, groups_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

_IN_SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect")
_START_SECONDS = 5.0
_END_SECONDS = 2.0

#: Kept as long as this process lives: the scope ends with it.
_scopes: list[Scope] = []


class Scope:
    """Kept alive by a process in it that reads from our pipe, and exits when we do.

    A fork keeps its copy of the pipe, because its cells are in the same scope, which ends with the last of the two.
    """

    def __init__(self, path: str, zygote_prefix: tuple[str, ...], anchor: subprocess.Popen[bytes]) -> None:
        self.path = path
        #: Processes cannot move from the session into the scope, so zygotes are started in a scope as well.
        self.zygote_prefix = zygote_prefix
        self._anchor: subprocess.Popen[bytes] | None = anchor
        self._kept: subprocess.Popen[bytes] | None = None
        own_until_exit(self)

    def abandon(self) -> None:
        self._kept, self._anchor = self._anchor, None

    def close(self) -> None:
        import subprocess

        anchor, self._anchor = self._anchor, None
        if anchor is None or anchor.stdin is None:
            return
        anchor.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # a fork of ours still needs it
            anchor.wait(_END_SECONDS)


def start_scope() -> Scope | None:
    """A scope in which we may make groups; None where this user has no systemd."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.exists(f"{runtime}/systemd/private"):
        return None
    asking = ("/usr/bin/env", "-i", f"XDG_RUNTIME_DIR={runtime}", *_IN_SCOPE)
    anchor = _start_anchor([*asking, "--property=Delegate=yes", "--", "/usr/bin/cat"])
    if anchor is None:
        return None
    path = os.path.normpath(ROOT + groups_of(anchor.pid)[""])
    scope = Scope(path, (*asking, "--", "/usr/bin/env", "-i", "LANG=C.UTF-8"), anchor)
    _scopes.append(scope)
    return scope


def _start_anchor(command: list[str]) -> subprocess.Popen[bytes] | None:
    """It answers once it is in the scope: only then does `systemd-run` exec the program."""
    import subprocess

    anchor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert anchor.stdin and anchor.stdout
    with suppress(OSError):
        anchor.stdin.write(b"!")
        anchor.stdin.flush()
        if select.select([anchor.stdout], [], [], _START_SECONDS)[0] and anchor.stdout.read(1):
            return anchor
    anchor.kill()
    anchor.communicate()
    return None
