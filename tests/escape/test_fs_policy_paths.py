"""FS-03 and the paths of a policy: what is writable is fixed when the backend is made, and nothing widens it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest

from warmcell.core.errors import EnforcerFailed, PolicyViolation, SandboxError
from warmcell.core.types import ExecRequest
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import AllowedPath, SandboxPolicy


@pytest.mark.attack("FS-03")
@pytest.mark.claim("WC-PT-2")
@pytest.mark.parametrize(
    "name", ["cwd", "workdir", "work_dir", "policy", "allowed_paths", "enforcer", "mounts", "root"]
)
def test_a_request_has_no_field_that_names_a_place(name: str) -> None:
    with pytest.raises(TypeError):
        ExecRequest("python", "print(1)", 1.0, **{name: "/"})  # type: ignore[arg-type]


@pytest.mark.attack("FS-03")
@pytest.mark.claim("WC-PT-2")
def test_the_environment_moves_nothing(cage: Cage) -> None:
    names = ("PWD", "OLDPWD", "HOME", "TMPDIR", "WORKDIR", "XDG_RUNTIME_DIR", "WARMCELL_WORK_DIR", "PYTHONHOME")
    env = dict.fromkeys(names[:-1], str(cage.canary.root))
    body = """
        attempt('write', lambda: open(canary + '/sub/made', 'w'))
        attempt('read', lambda: open(canary + '/secret.txt').read())
        """
    outcome = cage.run(guest(body, canary=str(cage.canary.root)), env=env)
    outcome.check_refused()
    assert cage.canary.secret not in outcome.everything


@pytest.mark.attack("FS-03")
@pytest.mark.claim("WC-FS-3")
@pytest.mark.parametrize("swap", ["symlink", "directory", "file", "parent symlink", "gone"])
def test_a_path_that_was_swapped_is_refused(cage: Cage, tmp_path: Path, swap: str) -> None:
    allowed = tmp_path / "parent" / "allowed"
    allowed.mkdir(parents=True)
    backend = cage.backend(SandboxPolicyBuilder().allow_read_write(allowed).allow_process_spawn().build())
    assert cage.run(f"open('{allowed}/made', 'w').write('x'); print('in')", backend=backend).stdout == "in\n"
    if swap == "parent symlink":
        allowed.parent.rename(tmp_path / "old")
        (cage.canary.root.parent / "evil" / "allowed").mkdir(parents=True)
        allowed.parent.symlink_to(cage.canary.root.parent / "evil")
    else:
        allowed.rename(tmp_path / "old")
    if swap == "symlink":
        allowed.symlink_to(cage.canary.root)
    elif swap == "directory":
        allowed.mkdir()
    elif swap == "file":
        allowed.write_text("now a file")
    for _ in range(2):
        with pytest.raises(EnforcerFailed, match="allowed path"):
            cage.run(f"open('{allowed}/pwned', 'w')", backend=backend)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.attack("FS-03")
@pytest.mark.claim("WC-FS-3")
def test_links_are_resolved_once_on_the_host(cage: Cage, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        (directory / "name").write_text(directory.name)
    link = tmp_path / "link"
    link.symlink_to(first)
    backend = cage.backend(SandboxPolicyBuilder().allow_read(link).allow_process_spawn().build())
    link.unlink()
    link.symlink_to(second)
    assert cage.run(f"print(open('{link}/name').read())", backend=backend).stdout == "first\n"


@pytest.mark.attack("FS-03")
@pytest.mark.claim("WC-FS-3")
def test_links_that_a_guest_plants_lead_nowhere(cage: Cage, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "inner").mkdir(parents=True)
    backend = cage.backend(SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build())
    plant = f"import os\nos.symlink('{cage.canary.file}', '{shared}/leaf')\nos.symlink('/', '{shared}/root')"
    cage.run(plant, backend=backend)
    body = """
        attempt('leaf', lambda: open(shared + '/leaf').read())
        attempt('root', lambda: open(shared + '/root' + canary).read())
        attempt('write', lambda: open(shared + '/leaf', 'w'))
        """
    cage.run(guest(body, shared=str(shared), canary=str(cage.canary.file)), backend=backend).check_refused()


@pytest.mark.attack("FS-03")
@pytest.mark.claim("WC-FS-3")
@pytest.mark.parametrize("target", ["/proc", "/proc/self", "/dev", "/dev/shm", "/sys", "/"])
def test_reserved_places_cannot_be_covered(cage: Cage, tmp_path: Path, target: str) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(PolicyViolation):
        SandboxPolicyBuilder().allow_read_write(tmp_path / "data", at=target)
    policy = SandboxPolicy((AllowedPath(str(tmp_path / "data"), guest_path=target),))
    with pytest.raises(PolicyViolation):
        cage.run("print(1)", backend=cage.backend(policy))


@pytest.mark.attack("FS-03")
@pytest.mark.claim("WC-FS-3")
@pytest.mark.parametrize("path", ["/dev/null", "/", "/proc/self/root", "/nonexistent-warmcell"])
def test_devices_and_the_whole_root_are_refused(cage: Cage, path: str) -> None:
    with pytest.raises(SandboxError):
        cage.run("print(1)", backend=cage.backend(SandboxPolicyBuilder().allow_read_write(path, at="/data").build()))


@pytest.mark.attack("FS-03")
@pytest.mark.parametrize("path", ["relative", "/a/../b", "/tmp/..", "a\0b"])
def test_paths_that_are_not_plain_are_refused(path: str) -> None:
    with pytest.raises(SandboxError):
        AllowedPath(path)


@pytest.mark.attack("FS-03")
@pytest.mark.claim("WC-FS-3")
def test_odd_names_are_only_names(cage: Cage, tmp_path: Path) -> None:
    shared = tmp_path / "with space\nand newline \\ back"
    shared.mkdir()
    code = f"""
import os
for name in (b'\\xff\\xfe', b'a\\nb', b'-rf', b'\\xe2\\x80\\xae', b'x' * 255):
    open(os.path.join({os.fsencode(shared)!r}, name), 'w').write('x')
print('made')
"""
    policy = SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build()
    assert cage.run(code, backend=cage.backend(policy)).stdout == "made\n"
    assert len(os.listdir(os.fsencode(shared))) == 5


@pytest.mark.attack("NW-04")
@pytest.mark.claim("WC-NW-1")
def test_a_host_socket_inside_an_allowed_path_answers_nobody(cage: Cage, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data / "s"))
        listener.listen()
        (data / "s").chmod(0o777)
        listener.settimeout(0.1)
        body = "import socket; attempt('connect', lambda: socket.socket(socket.AF_UNIX).connect(data + '/s'))"
        policy = SandboxPolicyBuilder().allow_read(data).allow_process_spawn().build()
        cage.run(guest(body, data=str(data)), backend=cage.backend(policy))
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.attack("FS-12")
@pytest.mark.claim("WC-FS-3")
def test_a_host_fifo_inside_a_read_only_path_takes_nothing(cage: Cage, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    os.mkfifo(data / "fifo")
    (data / "fifo").chmod(0o666)
    reader = os.open(data / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        body = "attempt('write', lambda: os.write(os.open(data + '/fifo', os.O_WRONLY | os.O_NONBLOCK), b'x'))"
        policy = SandboxPolicyBuilder().allow_read(data, at="/data").allow_process_spawn().build()
        cage.run(guest(body, data="/data"), backend=cage.backend(policy))
        with pytest.raises((BlockingIOError, AssertionError)):
            assert os.read(reader, 10) != b""
    finally:
        os.close(reader)


_RACE = """
    import socket, struct, threading
    bad = (struct.pack('=H', 1) + data.encode() + b'/s').ljust(108, b'\\0')
    harmless = {
        'abstract': b'\\1\\0\\0nothing',
        'inet': struct.pack('=HH4s', 2, 0, bytes([127, 0, 0, 1])),
        'short': b'\\1\\0',
        'own': b'\\1\\0/tmp/own',
    }
    own = socket.socket(socket.AF_UNIX)
    own.bind('/tmp/own')
    own.listen(4096)
    for name, good in harmless.items():
        good = good.ljust(108, b'\\0')
        address, is_over = ctypes.create_string_buffer(good, 110), False
        def flip():
            while not is_over:
                ctypes.memmove(address, bad, 108)
                ctypes.memmove(address, good, 108)
        thread = threading.Thread(target=flip)
        thread.start()
        for _ in range(1500):
            with socket.socket(socket.AF_UNIX) as client:
                libc.connect(client.fileno(), address, 110)
        is_over = True
        thread.join()
        print(name, 'tried', flush=True)
    """


@pytest.mark.attack("NW-04")
@pytest.mark.claim("WC-NW-1")
@pytest.mark.parametrize("is_open", [False, True], ids=["no network", "host network"])
def test_a_host_socket_cannot_be_reached_by_a_race(cage: Cage, tmp_path: Path, is_open: bool) -> None:
    """The address changes between the look at it and the call that goes on."""
    data = tmp_path / "data"
    data.mkdir()
    builder = SandboxPolicyBuilder().allow_read(data).allow_process_spawn()
    backend = cage.backend(builder.allow_network().build() if is_open else builder.build())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data / "s"))
        listener.listen(64)
        (data / "s").chmod(0o777)
        listener.setblocking(False)
        cage.run(guest(_RACE, data=str(data)), backend=backend, timeout=15)
        with pytest.raises(BlockingIOError):
            listener.accept()
