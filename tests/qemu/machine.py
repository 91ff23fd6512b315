"""Boots Debian's cloud kernel in software emulation and collects what the checks inside print."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.qemu.root import BUSYBOX, MANAGER, find_interpreter, initramfs

EMULATOR = "qemu-system-x86_64"
KERNEL_PACKAGE = "linux-image-cloud-amd64"
BOOT_SECONDS = 1500  # two minutes on an idle machine; only a hang reaches it
MARK = "WARMCELL "
# Emulated processors leak nothing, and guarding against it makes every system call flush the emulator's caches.
_KERNEL_OPTIONS = "console=ttyS0 loglevel=2 panic=-1 mitigations=off random.trust_cpu=on"
# Its clock counts instructions, so that a busy host slows the machine down without the machine noticing.
_OPTIONS = ["-accel", "tcg", "-icount", "shift=3,sleep=off", "-cpu", "max", "-smp", "1", "-m", "1024"]
_OPTIONS += ["-display", "none", "-nodefaults", "-no-reboot"]


class CannotBoot(Exception):
    """Something that the virtual machine needs is not on this host; the message names it."""


@dataclass(frozen=True)
class Report:
    """What was printed on the console: one record per check, and everything else for a person to read."""

    facts: dict[str, Any]
    checks: dict[tuple[str, str], dict[str, Any]]
    console: str


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmcell-qemu"


def find_kernel() -> Path:
    """Unpacked from the distribution's package, once, without installing it; concurrent callers wait."""
    cache = user_cache()
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _newest_kernel(cache) or _unpack_kernel(cache)


def _newest_kernel(cache: Path) -> Path | None:
    return max(cache.glob("kernel/boot/vmlinuz-*"), default=None)


def _unpack_kernel(cache: Path) -> Path:
    shutil.rmtree(cache / "kernel", ignore_errors=True)  # one without a kernel in it: half removed by somebody
    with tempfile.TemporaryDirectory(dir=cache) as work:
        package = _download(Path(work))
        subprocess.run(["dpkg", "-x", str(package), f"{work}/kernel"], check=True)
        shutil.rmtree(f"{work}/kernel/lib", ignore_errors=True)  # modules: nothing here needs one
        os.rename(f"{work}/kernel", cache / "kernel")
    kernel = _newest_kernel(cache)
    if kernel is None:
        raise CannotBoot(f"{package.name} has no kernel in it")
    return kernel


def _download(work: Path) -> Path:
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise CannotBoot(f"the kernel comes from Debian's {KERNEL_PACKAGE}, and this host has no apt-get and dpkg")
    name = _kernel_package()
    done = subprocess.run(["apt-get", "download", name], cwd=work, capture_output=True, text=True, check=False)
    packages = list(work.glob("*.deb"))
    if done.returncode != 0 or not packages:
        raise CannotBoot(f"apt-get download {name} failed: {done.stderr.strip()[-400:]}")
    return packages[0]


def _kernel_package() -> str:
    """The package behind the name that always means the newest. Only root can fetch lists that are not there."""
    for attempt in range(2):
        done = subprocess.run(["apt-cache", "depends", KERNEL_PACKAGE], capture_output=True, text=True, check=False)
        names = [line.split()[-1] for line in done.stdout.splitlines() if "Depends: linux-image-" in line]
        if names:
            return names[0]
        if attempt == 0 and os.geteuid() == 0:
            subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
    raise CannotBoot(f"apt knows no {KERNEL_PACKAGE}; run apt-get update, or use Debian's package sources")


def missing_tools() -> str:
    """What to install first, in words; empty when everything is there."""
    if platform.machine() != "x86_64":
        return "the test kernel is for x86_64"
    missing = [name for name in (EMULATOR, "ldd") if not shutil.which(name)]
    missing += [path for path in (BUSYBOX, MANAGER) if not os.path.exists(path)]
    missing += [] if find_interpreter() else ["a Python"]
    hint = "; on Debian: apt-get install qemu-system-x86 busybox-static systemd"
    return f"not installed: {', '.join(missing)}{hint}" if missing else ""


def boot(arguments: str = "") -> Report:
    """Runs every check in a new machine and waits for its end. Raises `CannotBoot` when there is nothing to boot."""
    missing = missing_tools()
    if missing:
        raise CannotBoot(missing)
    kernel = find_kernel()
    with tempfile.NamedTemporaryFile(prefix="warmcell-initramfs-") as image:
        image.write(initramfs())
        image.flush()
        console = _run(kernel, image.name, arguments)
    return parse_console(console)


def _run(kernel: Path, image: str, arguments: str) -> str:
    command_line = f"{_KERNEL_OPTIONS} -- {arguments}"
    command = [EMULATOR, *_OPTIONS, "-serial", "stdio", "-kernel", str(kernel), "-initrd", image]
    return run_emulator([*command, "-append", command_line])


def run_emulator(command: list[str]) -> str:
    """What the machine printed on its console until its end."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BOOT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        # What was printed until then still tells which check hung.
        return (late.stdout or b"").decode("utf-8", "replace") + f"\nkilled after {BOOT_SECONDS} s\n"
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def parse_console(console: str) -> Report:
    facts: dict[str, Any] = {}
    checks: dict[tuple[str, str], dict[str, Any]] = {}
    for line in console.splitlines():
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        try:
            record = json.loads(text)
        except ValueError:
            continue
        if "check" in record:
            checks[record["setting"], record["check"]] = record
        else:
            facts.update(record)
    return Report(facts, checks, console)


def main(boot: Callable[[str], Report], arguments: list[str]) -> int:
    """For a person: one line per check, then what the console said if anything failed."""
    try:
        report = boot(" ".join(arguments))
    except CannotBoot as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    for (setting, name), record in report.checks.items():
        print(f"{'ok  ' if record['passed'] else 'FAIL'} {record['seconds']:6.1f} s  {setting}: {name}")
    failed = [record for record in report.checks.values() if not record["passed"]]
    for record in failed:
        print(f"\n{record['setting']}: {record['check']}\n{record['detail']}", file=sys.stderr)
    if not report.facts.get("finished"):
        print(f"\nthe machine did not finish; its console:\n{report.console[-8000:]}", file=sys.stderr)
    print(json.dumps(report.facts), file=sys.stderr)
    return 0 if report.facts.get("finished") and not failed else 1


if __name__ == "__main__":
    sys.exit(main(boot, sys.argv[1:]))
