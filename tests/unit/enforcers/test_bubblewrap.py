"""bubblewrap: what the options say, what is refused, and what real children in real cages can do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import PATIENCE, require, until

from warmcell.core.errors import EnforcerUnavailable, InvalidRequest, PolicyViolation
from warmcell.core.types import Limits
from warmcell.enforcers import bubblewrap
from warmcell.enforcers.bubblewrap import BubblewrapEnforcer, bwrap_options, check_command, find_bwrap
from warmcell.enforcers.contract import SandboxEnforcer
from warmcell.enforcers.layout import Mount, SystemLayout
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy

OPEN = SandboxPolicy(allow_process_spawn=True)
LAYOUT = SystemLayout((Mount("/usr", "/usr"),), (("/bin", "usr/bin"),))
EVERYTHING = frozenset({"--size", "--disable-userns"})


def options(policy: SandboxPolicy = OPEN, *mounts: Mount, known: frozenset[str] = EVERYTHING) -> list[str]:
    return list(bwrap_options(policy, LAYOUT, mounts, known))


def has_run(items: list[str], *wanted: str) -> bool:
    return any(items[start : start + len(wanted)] == list(wanted) for start in range(len(items)))


# --- the options, without any bwrap ---------------------------------------------------------------------------------


def test_the_whole_command_line_of_the_default_cage() -> None:
    size = ["--size", str(256 * 1024 * 1024)]
    devices = [
        item
        for name in ("null", "zero", "full", "random", "urandom")
        for item in ("--dev-bind-try", *[f"/dev/{name}"] * 2)
    ]
    assert options() == [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--hostname", "sandbox", "--uid", "1000", "--gid", "1000"),
        *("--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "HOME", "/home/sandbox"),
        *("--setenv", "TMPDIR", "/tmp", "--setenv", "LANG", "C.UTF-8", "--setenv", "EMAIL", "sandbox@localhost"),
        *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"),
        *("--symlink", "/tmp", "/var/tmp", "--symlink", "/proc/self/mounts", "/etc/mtab"),
        *("--proc", "/proc", "--remount-ro", "/proc", "--tmpfs", "/dev", *devices),
        *("--symlink", "/proc/self/fd", "/dev/fd", "--symlink", "/proc/self/fd/0", "/dev/stdin"),
        *("--symlink", "/proc/self/fd/1", "/dev/stdout", "--symlink", "/proc/self/fd/2", "/dev/stderr"),
        *(*size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *(*size, "--tmpfs", "/tmp", *size, "--tmpfs", "/work", *size, "--tmpfs", "/home/sandbox"),
        *("--remount-ro", "/", "--chdir", "/work"),
    ]


def test_the_network_is_shared_only_when_asked() -> None:
    assert "--share-net" not in options()
    assert "--share-net" in options(SandboxPolicy(allow_process_spawn=True, allow_network=True))


def test_an_old_bwrap_does_without_what_it_lacks() -> None:
    assert not {"--size", "--disable-userns"} & set(options(known=frozenset()))


def test_the_disk_limit_is_the_size() -> None:
    policy = SandboxPolicy(allow_process_spawn=True, limits=Limits(disk_mb=3))
    assert has_run(options(policy), "--size", str(3 * 1024 * 1024), "--tmpfs", "/tmp")


def test_the_policys_environment_wins_over_the_defaults() -> None:
    items = options(SandboxPolicy(allow_process_spawn=True, env={"HOME": "/x", "K": "--bind / /"}))
    assert has_run(items, "--setenv", "HOME", "/x") and has_run(items, "--setenv", "K", "--bind / /")
    assert items.count("HOME") == 1 and "--bind" not in items


def test_mounts_come_after_the_system_and_before_the_root_is_closed() -> None:
    items = options(OPEN, Mount("/srv/a", "/data"), Mount("/srv/b", "/data/out", writable=True))
    first, second = items.index("/srv/a"), items.index("/srv/b")
    assert items[first - 1] == "--ro-bind" and items[second - 1] == "--bind"
    assert items.index("/home/sandbox", items.index("--tmpfs")) < first < second < items.index("/", second)


@given(
    st.dictionaries(st.text("-ab=\n '\"", min_size=1).filter(lambda key: "=" not in key), st.text("-ab=\n '\"/")),
    st.lists(st.text("-ab \n'\"$/")),
)
def test_nothing_in_a_policy_or_command_becomes_an_option(env: dict[str, str], args: list[str]) -> None:
    policy = SandboxPolicy(allow_process_spawn=True, env=env)
    items = options(policy)
    given_env = {**bubblewrap.DEFAULT_ENV, **env}
    start = items.index("--clearenv") + 1
    triples = [tuple(items[start + 3 * index : start + 3 * index + 3]) for index in range(len(given_env))]
    assert triples == [("--setenv", key, value) for key, value in given_env.items()]
    # Take the environment out, and the rest is the same as for the empty policy.
    end = start + 3 * len(given_env)
    plain = options()
    assert items[end:] == plain[plain.index("--clearenv") + 1 + 3 * len(bubblewrap.DEFAULT_ENV) :]
    assert check_command("/bin/x", args) == ("/bin/x", *args)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def bwrap(monkeypatch: pytest.MonkeyPatch) -> BubblewrapEnforcer:
    """An enforcer that finds a bwrap, whether or not there is one."""
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: bubblewrap.Bwrap("/usr/bin/bwrap", EVERYTHING))
    return BubblewrapEnforcer()


def test_it_is_an_enforcer(bwrap: BubblewrapEnforcer) -> None:
    assert isinstance(bwrap, SandboxEnforcer) and bwrap.name == "bubblewrap"


@pytest.mark.attack("NW-08")
def test_rules_by_domain_are_refused_not_dropped(bwrap: BubblewrapEnforcer) -> None:
    policy = SandboxPolicyBuilder(OPEN).allow_domain("example.com").build()
    with pytest.raises(EnforcerUnavailable, match="by domain") as caught:
        bwrap.wrap_command("/bin/true", [], policy)
    assert caught.value.hint and "native" in caught.value.hint


def test_a_ban_on_processes_is_refused_not_dropped(bwrap: BubblewrapEnforcer) -> None:
    with pytest.raises(EnforcerUnavailable, match="starting processes") as caught:
        bwrap.wrap_command("/bin/true", [], SandboxPolicy())
    assert caught.value.hint and "native" in caught.value.hint


@pytest.mark.parametrize("program", ["true", "./true", "--help", "-c", ""])
def test_a_program_must_be_absolute(program: str, bwrap: BubblewrapEnforcer) -> None:
    with pytest.raises(InvalidRequest, match="program"):
        bwrap.wrap_command(program, [], OPEN)


@pytest.mark.attack("PT-02")
def test_nul_is_refused(bwrap: BubblewrapEnforcer) -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        bwrap.wrap_command("/bin/true", ["a\0--bind\0/\0/"], OPEN)
    with pytest.raises(InvalidRequest, match="NUL"):
        bwrap.wrap_command("/bin/true\0", [], OPEN)


def test_the_command_follows_a_double_dash(bwrap: BubblewrapEnforcer) -> None:
    command = bwrap.wrap_command("/bin/x", ["--bind", "/", "/", "--"], OPEN)
    assert command.args[-6:] == ("--", "/bin/x", "--bind", "/", "/", "--")
    assert command.program == "/usr/bin/bwrap" and dict(command.env) == {} and command.pass_fds == ()


def test_bwrap_itself_gets_no_environment(bwrap: BubblewrapEnforcer) -> None:
    policy = SandboxPolicy(allow_process_spawn=True, env={"LD_PRELOAD": "/x.so"})
    keywords = bwrap.configure_command(bwrap.wrap_command("/bin/x", [], policy), policy)
    assert keywords == {"env": {}, "pass_fds": (), "close_fds": True, "cwd": "/"}


def test_no_bwrap_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "find_program", lambda _name: None)
    monkeypatch.setattr(bubblewrap, "find_in_wheel", lambda *_: None)
    for act in (BubblewrapEnforcer().probe, lambda: BubblewrapEnforcer().wrap_command("/bin/true", [], OPEN)):
        with pytest.raises(EnforcerUnavailable, match="bwrap was not found") as caught:
            act()
        assert caught.value.hint and "apt install bubblewrap" in caught.value.hint


def test_the_wheel_serves_where_the_distribution_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = fake_bwrap(tmp_path, "--clearenv --remount-ro --size")
    monkeypatch.setattr(bubblewrap, "find_program", lambda _name: None)
    monkeypatch.setattr(bubblewrap, "find_in_wheel", lambda *_: wheel)
    assert find_bwrap() == bubblewrap.Bwrap(wheel, frozenset({"--size"}))


def test_a_bwrap_that_cannot_clear_the_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_bwrap(tmp_path, "--bind")
    monkeypatch.setattr(bubblewrap, "find_program", lambda _name: old)
    with pytest.raises(EnforcerUnavailable, match="too old"):
        find_bwrap()


def fake_bwrap(directory: Path, words: str) -> str:
    path = directory / "bwrap"
    path.write_text(f"#!/bin/sh\necho {words}\n")
    path.chmod(0o755)
    return str(path)


# --- real children ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cage() -> BubblewrapEnforcer:
    enforcer = BubblewrapEnforcer()
    try:
        enforcer.probe()
    except EnforcerUnavailable as error:
        require(False, str(error))
    return enforcer


def run(
    cage: BubblewrapEnforcer, script: str, policy: SandboxPolicy = OPEN, *args: str
) -> subprocess.CompletedProcess[str]:
    command = cage.wrap_command("/bin/sh", ["-c", script, "sh", *args], policy)
    keywords = cage.configure_command(command, policy)
    return subprocess.run(command.argv, capture_output=True, text=True, timeout=30, check=False, **keywords)  # type: ignore[call-overload, no-any-return]


def allow(*paths: AllowedPath) -> SandboxPolicy:
    return SandboxPolicy(allowed_paths=paths, allow_process_spawn=True)


READ_WRITE = AccessMode.READ_WRITE


def test_the_exit_status_comes_back(cage: BubblewrapEnforcer) -> None:
    assert run(cage, "exit 42").returncode == 42


@pytest.mark.attack("LK-01")
@pytest.mark.attack("PR-01")
def test_nothing_of_the_hosts_environment(cage: BubblewrapEnforcer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_SECRET", "canary-7f3a")
    done = run(cage, "env; for f in /proc/[0-9]*/environ; do tr '\\0' '\\n' <$f; done; cat /proc/1/cmdline")
    assert "canary-7f3a" not in done.stdout
    lines = {line.partition("=")[0] for line in run(cage, "exec env").stdout.splitlines()}
    assert lines == {"PATH", "HOME", "TMPDIR", "LANG", "EMAIL", "PWD"}


@pytest.mark.attack("FS-01")
@pytest.mark.attack("LK-03")
@pytest.mark.attack("LK-04")
def test_nothing_of_the_hosts_files(cage: BubblewrapEnforcer, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("canary-9b1c")
    done = run(
        cage, 'cat "$1"; ls / /home /etc; cat /etc/passwd; hostname; cat /etc/shadow', OPEN, str(tmp_path / "canary")
    )
    assert "canary-9b1c" not in done.stdout and socket.gethostname() not in done.stdout.split()
    listing = done.stdout.split()
    assert not {"root", "mnt", "srv", "var/lib", "shadow", "machine-id"} & set(listing) and "sandbox" in listing


@pytest.mark.attack("FS-02")
def test_nothing_outside_can_be_written(cage: BubblewrapEnforcer) -> None:
    places = "/ /etc /usr /usr/bin /opt /var /dev /proc /home"
    script = f'for p in {places}; do (echo x >"$p/warmcell-canary") 2>/dev/null && echo "WROTE $p"; done; echo done'
    assert run(cage, script).stdout == "done\n"
    assert not any(Path(place, "warmcell-canary").exists() for place in places.split())


@pytest.mark.attack("PR-03")
def test_kernel_settings_cannot_be_written_even_by_root(cage: BubblewrapEnforcer) -> None:
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    # The same value again: harmless if it gets through, and the exit status tells.
    script = """
f=/proc/sys/kernel/core_pattern
v=$(cat $f); (echo "$v" >$f) 2>/dev/null && echo WROTE core_pattern
(echo 0 >/proc/self/oom_score_adj) 2>/dev/null && echo WROTE oom
(: >/proc/sysrq-trigger) 2>/dev/null && echo WROTE sysrq
echo done"""
    assert run(cage, script).stdout == "done\n"
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


@pytest.mark.attack("FS-09")
@pytest.mark.attack("KR-02")
def test_no_capabilities_and_no_way_to_any(cage: BubblewrapEnforcer) -> None:
    done = run(cage, "grep -E '^(Cap|NoNewPrivs)' /proc/self/status; unshare --user true 2>&1 && echo NESTED; id -u")
    values = dict(line.split(":\t") for line in done.stdout.splitlines() if ":\t" in line)
    assert values.pop("NoNewPrivs") == "1" and {int(value, 16) for value in values.values()} == {0}
    assert done.stdout.splitlines()[-1] == "1000"
    if "--disable-userns" in find_bwrap().options:
        assert "NESTED" not in done.stdout


@pytest.mark.attack("FS-10")
def test_five_devices_and_no_new_ones(cage: BubblewrapEnforcer) -> None:
    done = run(
        cage, "ls /dev; mknod /tmp/m c 1 1 2>/dev/null && echo MADE; head -c 3 /dev/urandom | wc -c; echo x >/dev/null"
    )
    devices = {"fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"}
    *listed, count = done.stdout.split()
    assert set(listed) == devices and count == "3"
    assert done.returncode == 0


@pytest.mark.attack("PR-02")
def test_only_its_own_processes(cage: BubblewrapEnforcer) -> None:
    done = run(cage, f"ls -d /proc/[0-9]* | wc -l; kill -0 {os.getpid()} 2>/dev/null && echo REACHED")
    assert int(done.stdout.split()[0]) <= 6 and "REACHED" not in done.stdout


@pytest.mark.attack("NW-01")
@pytest.mark.attack("NW-03")
def test_no_way_to_the_hosts_sockets(cage: BubblewrapEnforcer) -> None:
    require(Path("/usr/bin/python3").exists(), "there is no /usr/bin/python3")
    code = """
import socket, sys
for family, address in ((socket.AF_INET, ("127.0.0.1", int(sys.argv[1]))), (socket.AF_UNIX, "\\0" + sys.argv[2])):
    try:
        socket.socket(family).connect(address); print("REACHED", address)
    except OSError as error:
        print(type(error).__name__)
"""
    name = f"warmcell-canary-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        port = str(server.getsockname()[1])
        done = run(cage, 'exec /usr/bin/python3 -c "$1" "$2" "$3"', OPEN, code, port, name)
        assert done.stdout.split() == ["ConnectionRefusedError", "ConnectionRefusedError"], done.stderr
        shared = SandboxPolicy(allow_process_spawn=True, allow_network=True)
        assert "REACHED" in run(cage, 'exec /usr/bin/python3 -c "$1" "$2" "$3"', shared, code, port, name).stdout


@pytest.mark.attack("RX-04")
def test_scratch_space_is_bounded(cage: BubblewrapEnforcer) -> None:
    require("--size" in find_bwrap().options, "this bwrap cannot size a tmpfs")
    policy = SandboxPolicy(allow_process_spawn=True, limits=Limits(disk_mb=1))
    fill = "head -c 3000000 /dev/zero >$d/big 2>/dev/null && echo FILLED $d; rm $d/big"
    script = f'for d in /tmp /work /dev/shm "$HOME" /var/tmp; do {fill}; done; echo done'
    assert run(cage, script, policy).stdout == "done\n"


@pytest.mark.attack("LK-05")
def test_runs_share_nothing(cage: BubblewrapEnforcer) -> None:
    run(cage, 'touch /tmp/canary /work/canary /dev/shm/canary "$HOME/canary"')
    assert run(cage, 'ls -A /tmp /work /dev/shm "$HOME"').stdout.count("canary") == 0


def test_allowed_paths_mean_what_they_say(cage: BubblewrapEnforcer, tmp_path: Path) -> None:
    (tmp_path / "ro" / "rw").mkdir(parents=True)
    (tmp_path / "rw" / "ro").mkdir(parents=True)
    policy = allow(
        AllowedPath(str(tmp_path / "ro" / "rw"), READ_WRITE),
        AllowedPath(str(tmp_path / "ro")),
        AllowedPath(str(tmp_path / "rw" / "ro")),
        AllowedPath(str(tmp_path / "rw"), READ_WRITE),
    )
    script = 'for d in ro ro/rw rw rw/ro; do (echo hi >"$1/$d/f") 2>/dev/null && echo $d; done'
    assert run(cage, script, policy, str(tmp_path)).stdout.split() == ["ro/rw", "rw"]
    assert (tmp_path / "ro" / "rw" / "f").read_text() == "hi\n" and not (tmp_path / "ro" / "f").exists()


def test_another_place_and_awkward_names(cage: BubblewrapEnforcer, tmp_path: Path) -> None:
    names = ["-v", "--bind", "two words", "new\nline", "quote'\"$(x)", "ü\u202e", "a,b:c=d"]
    paths = []
    for index, name in enumerate(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(str(index))
        paths.append(AllowedPath(str(tmp_path / name), guest_path=f"/data/{name}"))
    done = run(cage, 'for p in "$@"; do cat "/data/$p/file"; done', allow(*paths), *names)
    assert done.stdout == "0123456", done.stderr
    work = AllowedPath(str(tmp_path), READ_WRITE, guest_path="/work")
    assert run(cage, "pwd; touch made", allow(work)).stdout == "/work\n" and (tmp_path / "made").exists()


def test_a_link_is_shown_as_what_it_leads_to(cage: BubblewrapEnforcer, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("content")
    (tmp_path / "link").symlink_to("real")
    done = run(cage, 'cat "$1/link/file"; ls "$1"', allow(AllowedPath(str(tmp_path / "link"))), str(tmp_path))
    assert done.stdout == "contentlink\n"


@pytest.mark.attack("PT-11")
def test_it_dies_with_its_parent(cage: BubblewrapEnforcer, tmp_path: Path) -> None:
    policy = allow(AllowedPath(str(tmp_path), READ_WRITE))
    two_minutes = f"touch {tmp_path}/started; for n in $(seq 120); do sleep 1; done"
    command = cage.wrap_command("/bin/sh", ["-c", two_minutes], policy)
    starter = (
        "import subprocess, sys, os, time\nsubprocess.Popen(sys.argv[2:], env={})\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", starter, f"{tmp_path}/started", *command.argv], timeout=PATIENCE, check=False)
    assert (tmp_path / "started").exists()
    until(lambda: not _is_in_a_command_line(f"{tmp_path}/started"))


def _is_in_a_command_line(text: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if text.encode() in path.read_bytes():
                return True
    return False


def test_a_missing_path_is_refused_before_anything_starts(cage: BubblewrapEnforcer, tmp_path: Path) -> None:
    with pytest.raises(PolicyViolation, match="cannot be allowed"):
        run(cage, "true", allow(AllowedPath(str(tmp_path / "nowhere"))))
