"""In a chroot the kernel refuses user namespaces to everyone; that is what `doctor` must say, by name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.enforcers import refusals
from warmcell.lifetime.host_program import base_executable

SOURCE = Path(__file__).resolve().parents[2] / "src"
_SCRIPT = """
set -e
cd "$1"
mkdir -p usr proc source tmp python
mount --rbind /usr usr
mount --rbind "$3" source
if [ "$2" = with-proc ]; then mount --rbind /proc proc; fi
for name in bin lib lib64; do if [ -L /$name ]; then ln -s "$(readlink /$name)" $name; fi; done
case "$4" in /usr/*) ;; *) mkdir -p ".$5"; mount --rbind "$5" ".$5" ;; esac
exec chroot . "$4" -I -S -c "import sys; sys.path.insert(0, '/source')
from warmcell.enforcers import probe
host = probe.measure()
print(host.user_namespaces, host.reason('user_namespaces'))"
"""


def in_chroot(root: Path, proc: str) -> str:
    require(shutil.which("unshare") and shutil.which("chroot", path="/usr/sbin:/usr/bin"), "unshare and chroot")
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _SCRIPT, "sh"]
    arguments = [str(root), proc, str(SOURCE), base_executable(), sys.base_prefix]
    ended = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    )
    require(not ended.stderr.startswith("unshare:"), f"user namespaces: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.needs("linux")
def test_a_chroot_is_called_one(tmp_path: Path) -> None:
    assert in_chroot(tmp_path, "with-proc").startswith("False the kernel refuses user namespaces in a chroot")


@pytest.mark.needs("linux")
def test_a_missing_proc_is_said(tmp_path: Path) -> None:
    assert in_chroot(tmp_path, "without").startswith("False /proc is not mounted here")


def test_we_are_in_none() -> None:
    assert refusals.is_chroot() is False
