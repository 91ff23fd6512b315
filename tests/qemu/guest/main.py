"""Runs every check in every setting and prints one line of JSON for each. The machine ends when this does."""

from __future__ import annotations

import atexit
import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.qemu.guest.checks import ON_DEMAND, Bench, Check
from tests.qemu.guest.plan import AFTERWARDS, PLAN
from tests.qemu.guest.settings import Setting

import warmcell
from warmcell.backends.process.backend import ProcessBackend
from warmcell.cage.linux import kernel_support


def say(**record: object) -> None:
    print("WARMCELL " + json.dumps(record), flush=True)


def run(setting: Setting, name: str, check: Check, bench: Bench) -> None:
    started = time.monotonic()
    detail = ""
    try:
        check(bench)
    except BaseException:
        detail = traceback.format_exc()[-3000:]
    seconds = round(time.monotonic() - started, 2)
    say(setting=setting.name, check=name, passed=not detail, detail=detail, seconds=seconds)


def run_setting(setting: Setting, checks: dict[str, Check]) -> None:
    setting.make_groups()
    company = in_a_child(lambda: keep_company(setting)) if setting.has_company else 0
    manager = in_a_child(setting.start_manager) if setting.manager else 0
    os.waitpid(in_a_child(lambda: run_checks(setting, checks)), 0)
    bench = Bench(setting.mechanism, setting.group, None)  # type: ignore[arg-type]  # nothing runs any more
    run(setting, AFTERWARDS, lambda _: look_afterwards(setting, company), bench)
    for pid in filter(None, (company, manager)):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def in_a_child(action: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        action()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # As an ordinary program ends: exit handlers remove what is left.
        atexit._run_exitfuncs()
        os._exit(status)


def keep_company(setting: Setting) -> None:
    setting.enter()
    signal.pause()


def run_checks(setting: Setting, checks: dict[str, Check]) -> None:
    """In a child of its own: what was measured about the host belongs to one setting."""
    setting.enter()
    if setting.manager:
        setting.await_manager()
    with ProcessBackend(ON_DEMAND, "native") as backend:
        for name, check in checks.items():
            run(setting, name, check, Bench(setting.mechanism, setting.group, backend))


def look_afterwards(setting: Setting, company: int) -> None:
    left = [str(path) for path in Path("/sys/fs/cgroup").rglob("warmcell*")]
    assert not left, left
    if company:
        assert str(company) in (setting.path / "cgroup.procs").read_text().split(), "was not moved back"


def main() -> None:
    chosen = " ".join(sys.argv[1:]).split(",") if sys.argv[1:] else []
    Path("/canary/secret").write_text("secret")
    Path("/usr/share/everybody").mkdir(parents=True)
    Path("/usr/share/everybody").chmod(0o777)
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    say(
        kernel=platform.release(),
        controllers=controllers,
        landlock_abi=kernel_support.landlock_version(),
        warmcell=warmcell.__name__,
    )
    for setting, checks in PLAN:
        if not chosen or setting.name in chosen:
            run_setting(setting, checks)
    say(finished=True)


if __name__ == "__main__":
    main()
