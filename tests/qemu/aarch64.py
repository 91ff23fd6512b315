"""The same checks on aarch64: Debian's arm64 kernel, Python and libraries, fetched once, in software emulation.

It takes too long for every change: `scripts/test-aarch64` runs it by hand.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.qemu import machine
from tests.qemu.archive import Entry, write_archive
from tests.qemu.root import DIRECTORIES, HERE, add_directory, add_link, add_package, for_everybody

EMULATOR = "qemu-system-aarch64"
_OPTIONS = ["-M", "virt", "-accel", "tcg", "-icount", "shift=3,sleep=off", "-cpu", "max,pauth-impdef=on", "-smp", "1"]
_OPTIONS += ["-m", "1024", "-display", "none", "-nodefaults", "-no-reboot"]
_KERNEL_OPTIONS = "console=ttyAMA0 loglevel=2 panic=-1 mitigations=off random.trust_cpu=on"
_KERNEL_PACKAGE = "linux-image-cloud-arm64"
_PACKAGES = (
    *("busybox-static", "libc6", "libgcc-s1", "libcrypt1", "python3.11-minimal", "libpython3.11-minimal"),
    *("libpython3.11-stdlib", "libexpat1", "zlib1g", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libuuid1"),
)
_SOURCES = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {} bookworm main\n"
_LEFT_OUT = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/test/", "/lib2to3/", "/idlelib/", "/tkinter/")
#: Settings without a service manager, of which there is none here.
SETTINGS = "root,user"


def find_sysroot() -> Path:
    """All packages, unpacked; concurrent callers wait."""
    cache = machine.user_cache() / "aarch64"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "root").exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                _unpack(Path(work))
                os.rename(f"{work}/root", cache / "root")
    return cache / "root"


def _unpack(work: Path) -> None:
    apt = _apt_options(work)
    _call(["apt-get", *apt, "update", "-q"], work)
    depends = _call(["apt-cache", *apt, "depends", _KERNEL_PACKAGE], work)
    kernel = next(line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line)
    _call(["apt-get", *apt, "download", kernel, *_PACKAGES], work)
    for package in work.glob("*.deb"):
        _call(["dpkg", "-x", str(package), "root"], work)
    shutil.rmtree(work / "root" / "lib" / "modules", ignore_errors=True)


def _find_mirror(work: Path) -> str:
    """The one that this host installs its own packages from."""
    if (named := os.environ.get("WARMCELL_DEBIAN_MIRROR")) is not None:
        return named
    lines = _call(["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"], work)
    found = [line.split()[0] for line in lines.splitlines() if line.endswith(" bookworm")]
    assert found, "this host has no package source of Debian 12: set WARMCELL_DEBIAN_MIRROR"
    return found[0]


def _apt_options(work: Path) -> list[str]:
    """apt for another architecture, with its own state: the host's lists are not touched."""
    for name in ("state/lists/partial", "cache/archives/partial", "etc"):
        (work / name).mkdir(parents=True)
    (work / "etc" / "sources.list").write_text(_SOURCES.format(_find_mirror(work)))
    (work / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Dir::Etc::SourceList": f"{work}/etc/sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State": f"{work}/state",
        "Dir::State::Status": f"{work}/status",
        "Dir::Cache": f"{work}/cache",
    }
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _call(command: list[str], work: Path) -> str:
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise machine.CannotBoot(f"{' '.join(command[:1] + command[-2:])} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def initramfs(sysroot: Path) -> bytes:
    buffer = io.BytesIO()
    write_archive(
        buffer,
        [
            *(Entry(name) for name in ("bin", "dev", "proc", "new")),
            Entry("dev/console", device=(5, 1)),
            Entry("dev/null", device=(1, 3)),
            Entry("bin/busybox", (sysroot / "bin/busybox").read_bytes()),
            Entry("init", (HERE / "guest" / "init").read_bytes()),
            Entry("root.tar", _root(sysroot)),
        ],
    )
    return buffer.getvalue()


def _root(sysroot: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in (*DIRECTORIES, "usr", "usr/bin", "usr/lib", "usr/sbin"):
            add_directory(tar, name)
        for name in ("bin", "sbin", "lib"):
            add_link(tar, name, f"usr/{name}")
        for path in sorted(sysroot.rglob("*")):
            name = f"/{path.relative_to(sysroot)}"
            if path.is_dir() or name.startswith("/boot") or any(part in name for part in _LEFT_OUT):
                continue
            place = f"/usr{name}" if name.startswith(("/bin/", "/sbin/", "/lib/")) else name
            tar.add(path, place, filter=for_everybody)
        add_link(tar, "usr/bin/python3", "/usr/bin/python3.11")
        for name in ("sh", "env", "cat"):
            add_link(tar, f"usr/bin/{name}", "/usr/bin/busybox")
        add_package(tar, "/usr/bin/python3.11")
        for path in (HERE / "guest").iterdir():
            if path.is_file():
                tar.add(path, f"checks/tests/qemu/guest/{path.name}", filter=for_everybody)
    return buffer.getvalue()


def boot(arguments: str) -> machine.Report:
    if not shutil.which(EMULATOR):
        raise machine.CannotBoot(f"not installed: {EMULATOR}; on Debian: apt-get install qemu-system-arm")
    sysroot = find_sysroot()
    kernel = max(sysroot.glob("boot/vmlinuz-*"))
    with tempfile.NamedTemporaryFile(prefix="warmcell-initramfs-") as image:
        image.write(initramfs(sysroot))
        image.flush()
        command = [EMULATOR, *_OPTIONS, "-serial", "stdio", "-kernel", str(kernel), "-initrd", image.name]
        console = machine.run_emulator([*command, "-append", f"{_KERNEL_OPTIONS} -- {arguments}"])
    return machine.parse_console(console)


if __name__ == "__main__":
    sys.exit(machine.main(boot, sys.argv[1:] or [SETTINGS]))
