"""Attacks from inside an image: on the layers that runs share, on the cage's own places, and as root."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.escape.harness import Belongings, Cage, check_nothing_left
from tests.escape.payloads import guest
from tests.image_roots import make_busybox, make_root

from warmcell.backends.process import policy_resolver
from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import BackendUnavailable, EnforcerFailed, EnforcerUnavailable, InvalidRequest
from warmcell.core.records import replace
from warmcell.images import Image, ImageStore

#: `WARMCELL_IMAGE_RUNS=1000` makes as many, by hand.
_SOME_RUNS = int(os.environ.get("WARMCELL_IMAGE_RUNS", "24"))


def _state(image: Image) -> dict[str, object]:
    """Everything in the layers that a guest could have changed."""
    found: dict[str, object] = {}
    for layer in image.layer_paths:
        for path in [Path(layer), *sorted(Path(layer).rglob("*"))]:
            status = path.lstat()
            found[str(path)] = (status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns)
    return found


@pytest.mark.attack("FS-02")
@pytest.mark.claim("WC-IM-1")
@pytest.mark.parametrize("user", [None, "root"])
def test_writes_stay_in_the_run_that_made_them(image: Image, cage: Cage, user: str | None) -> None:
    before = _state(image)
    backend = cage.backend(image=image, user=user)
    script = """
        echo mine > /etc/os-release; rm -r /var/tmp; touch /usr/bin/sh; chmod 700 /etc; ln /etc/passwd /etc/other
        mkdir /new && echo x > /new/x; echo 'x:x:0:0::/:/bin/sh' >> /etc/passwd; cat /etc/os-release
        """
    assert cage.run(script, "command", backend=backend).stdout == "mine\n"
    second = cage.run("cat /etc/os-release; ls -d /var/tmp /new /etc/other", "command", backend=backend)
    assert second.stdout == 'NAME="Cell Linux"\n/var/tmp\n'
    assert _state(image) == before


@pytest.mark.attack("RX-04")
@pytest.mark.claim("WC-RX-3")
def test_writes_to_the_root_count_as_disk(image: Image, cage: Cage) -> None:
    script = "dd if=/dev/zero of=/usr/fill bs=1M count=100 2>&1; stat -c %s /usr/fill"
    outcome = cage.run(script, "command", backend=cage.backend(image=image), disk_mb=16, memory_mb=256)
    assert int(outcome.stdout.split()[-1]) <= 16 << 20
    assert any(denial.kind == "disk" for denial in outcome.result.denials)


@pytest.mark.attack("FS-01")
@pytest.mark.claim("WC-IM-2")
@pytest.mark.parametrize("user", [None, "root"])
def test_nothing_of_the_host_shows(image: Image, cage: Cage, user: str | None) -> None:
    body = f"""
        found = open('/proc/self/mountinfo').read()
        print('HOST' if {str(Path(image.layer_paths[0]).parents[2])!r} in found else 'clean')
        print(os.path.exists({str(cage.canary.file)!r}), sorted(os.listdir('/dev')))
        """
    lines = cage.run(guest(body), backend=cage.backend(image=image, user=user)).stdout.splitlines()
    assert lines[0] == "clean" and lines[1].startswith("False ")
    devices = "['fd', 'full', 'null', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'tty', 'urandom', 'zero']"
    assert lines[1].removeprefix("False ") == devices


@pytest.mark.attack("FS-09")
@pytest.mark.claim("WC-IM-3")
def test_root_inside_has_no_privilege(image: Image, cage: Cage, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    from warmcell.policy.builder import SandboxPolicyBuilder

    policy = SandboxPolicyBuilder().allow_process_spawn().allow_read_write(str(shared)).build()
    backend = cage.backend(policy, image=image, user="root")
    status = cage.run(f"cat /proc/self/status; id -u; touch {shared}/made", "command", backend=backend).stdout
    found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert found["NoNewPrivs"] == "1" and found["Seccomp"] == "2" and status.splitlines()[-1] == "0"
    assert (shared / "made").stat().st_uid == shared.stat().st_uid


@pytest.mark.attack("KR-01")
@pytest.mark.claim("WC-IM-3")
def test_root_inside_is_refused_what_every_guest_is(image: Image, cage: Cage) -> None:
    body = """
        attempt('mount', lambda: syscall('mount', b'none', b'/mnt', b'tmpfs', 0, None))
        attempt('unshare', lambda: syscall('unshare', 0x10000000))
        attempt('ptrace init', lambda: syscall('ptrace', 16, 1, 0, 0))
        attempt('memory of init', lambda: open('/proc/1/mem', 'rb').read(1))
        attempt('environment of init', lambda: open('/proc/1/environ', 'rb').read(1))
        attempt('descriptor of init', lambda: os.readlink('/proc/1/fd/0'))
        attempt('limits of init', lambda: syscall('prlimit64', 1, 7, bytes(16), None))
        attempt('setting', lambda: open('/proc/sys/kernel/shmmax', 'w').write('1'))
        attempt('quota', lambda: open('/proc/sys/user/max_user_namespaces', 'w').write('9'))
        attempt('oom score of init', lambda: open('/proc/1/oom_score_adj', 'w').write('900'))
        attempt('device', lambda: os.mknod('/tmp/null', 0o20666, os.makedev(1, 3)))
        attempt('host name', lambda: syscall('sethostname', b'x', 1))
        """
    cage.run(guest(body), backend=cage.backend(image=image, user="root")).check_refused()


@pytest.mark.claim("WC-IM-3")
def test_packages_install_as_root(image: Image, cage: Cage) -> None:
    """Their scripts make users and change owners, which is answered with success and has no effect."""
    script = """
        set -e
        mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin /tmp/p/etc
        echo 'for nobody to write' > /tmp/p/etc/greeter
        printf 'Package: greeter\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@localhost>\\nDescription: a\\n' \
            > /tmp/p/DEBIAN/control
        printf '#!/bin/sh\\nset -e\\nuseradd --system greeter\\nchown greeter:shadow /usr/bin/greet\\n' \
            > /tmp/p/DEBIAN/postinst
        printf '#!/bin/sh\\necho hello\\n' > /tmp/p/usr/bin/greet
        chmod 755 /tmp/p/DEBIAN/postinst /tmp/p/usr/bin/greet
        chmod 440 /tmp/p/etc/greeter
        dpkg-deb -b /tmp/p /tmp/greeter.deb >/dev/null
        dpkg -i /tmp/greeter.deb >/dev/null
        greet; tail -n 1 /etc/passwd; stat -c %u /usr/bin/greet
        """
    outcome = cage.run(script, "command", backend=cage.backend(image=image, user="root"))
    assert outcome.stdout.startswith("hello\ngreeter:") and outcome.stdout.endswith("\n0\n"), outcome.result.stderr


@pytest.mark.attack("FS-09")
def test_others_cannot_change_owners(image: Image, cage: Cage) -> None:
    outcome = cage.run("chown 1:1 /etc/passwd || echo refused", "command", backend=cage.backend(image=image))
    assert outcome.stdout == "refused\n"


@pytest.mark.attack("FS-12")
@pytest.mark.claim("WC-IM-2")
@pytest.mark.parametrize("place", ["tmp", "dev", "proc", "work", "etc"])
def test_a_link_in_place_of_one_of_ours_is_refused(cage: Cage, tmp_path: Path, place: str) -> None:
    """Following it would lead out of the image's root, to a directory that is there while the cage is built."""
    root = make_root(tmp_path / "root", "sh", "true")
    target = root / place
    if target.is_dir():
        for path in target.iterdir():
            path.unlink()
        target.rmdir()
    target.symlink_to("/tmp/upper")
    image = ImageStore(tmp_path / "store").import_(root, "links:1")
    with pytest.raises(EnforcerFailed):
        cage.run("true", "command", backend=cage.backend(image=image))


def test_a_static_program_needs_nothing_of_the_host(cage: Cage, tmp_path: Path) -> None:
    backend = cage.backend(image=make_busybox(tmp_path))
    outcome = cage.run("id -u; cat /etc/hosts; ls /usr /lib 2>/dev/null", "command", backend=backend)
    assert outcome.stdout.splitlines()[0] == "1000" and "localhost" in outcome.stdout.splitlines()[1]
    assert len(outcome.stdout.splitlines()) == 3
    with pytest.raises(BackendUnavailable, match="has no python3"):
        cage.run("print(1)", backend=backend)


def test_only_the_native_cage_has_images(image: Image, cage: Cage) -> None:
    with pytest.raises(EnforcerUnavailable, match="image"):
        cage.run("true", "command", backend=cage.backend(image=image, enforcer="landlock"))


def test_a_kernel_without_the_overlay_is_refused_with_the_reason(
    image: Image, cage: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = cage.backend(image=image)
    monkeypatch.setattr(policy_resolver, "kernel_version", lambda: (6, 1))
    with pytest.raises(EnforcerUnavailable, match="user attributes on tmpfs"):
        cage.run("true", "command", backend=backend)


def test_layers_that_cannot_be_mounted_are_refused_with_the_reason(image: Image, cage: Cage) -> None:
    """The kernel refuses an overlay that has one directory twice."""
    backend = cage.backend(image=replace(image, layer_paths=image.layer_paths * 2))
    with pytest.raises(EnforcerUnavailable, match="does not mount the image"):
        cage.run("true", "command", backend=backend)


@pytest.mark.claim("WC-RX-5")
def test_runs_over_images_leave_nothing(image: Image, cage: Cage, tmp_path: Path) -> None:
    """Four images, one of them with two users."""
    small = [make_image_of(make_root(tmp_path / name / "root", "sh", "cat"), tmp_path / name) for name in ("a", "b")]
    backends = [cage.backend(image=each) for each in (image, make_busybox(tmp_path), *small)]
    backends.append(cage.backend(image=image, user="root"))
    for backend in backends:
        cage.run("echo warm", "command", backend=backend)
    before = Belongings.now()
    for number in range(_SOME_RUNS):
        outcome = cage.run(f"echo {number} > /etc/x; cat /etc/x", "command", backend=backends[number % len(backends)])
        assert outcome.stdout == f"{number}\n"
    check_nothing_left(before)


def test_users_need_an_image() -> None:
    with pytest.raises(InvalidRequest, match="image"):
        ProcessBackend(user="root")


def test_set_id_bits_of_an_image_have_no_effect(cage: Cage, tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", "sh", "id", "cat")
    (root / "usr/bin/id").chmod(0o6755)
    image = make_image_of(root, tmp_path)
    for layer in image.layer_paths:
        assert not any(stat.S_IMODE(os.lstat(path).st_mode) & 0o6000 for path in Path(layer).rglob("id"))
    assert cage.run("id -u", "command", backend=cage.backend(image=image)).stdout == "1000\n"


def make_image_of(root: Path, directory: Path) -> Image:
    return ImageStore(directory / "store").import_(root, "root:1")
