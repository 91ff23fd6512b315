"""AppContainer (Windows): turns the policy into a profile, capabilities and grants on files.

This module decides everything, as plain data; `appcontainer_launcher.py` carries it out on Windows.
"""

from __future__ import annotations

import hashlib
import json
import ntpath
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from warmcell.core.errors import EnforcerUnavailable, InvalidRequest, PolicyViolation
from warmcell.core.types import check_text
from warmcell.enforcers.contract import WrappedCommand
from warmcell.lifetime.host_program import CHILD_MARK, own_interpreter
from warmcell.policy.enforcer_support import check_supported
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.policy.places import find_narrowing
from warmcell.policy.resolve import effective_limits

NAME = "appcontainer"
LAUNCHER = Path(__file__).with_name("appcontainer_launcher.py")

INTERNET_CLIENT = "S-1-15-3-1"
PRIVATE_NETWORK = "S-1-15-3-3"

READ_ONLY_MASK = 0x1200A9  # FILE_GENERIC_READ | FILE_GENERIC_EXECUTE
READ_WRITE_MASK = 0x1301BF  # ... | FILE_GENERIC_WRITE | DELETE, but not the right to change permissions

_DRIVE_PATH = re.compile(r"/([A-Za-z]):(/.*)?")
_FORBIDDEN_IN_PATH = re.compile(r'[\x00-\x1f<>"|?*:]')


@dataclass(frozen=True, slots=True)
class Grant:
    """An access entry for the profile's identity, set on a path during the run."""

    path: str
    mask: int


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """Everything that the launcher needs. The launcher decides nothing."""

    profile: str
    capabilities: tuple[str, ...]
    grants: tuple[Grant, ...]
    command_line: str
    environment: str
    allow_children: bool
    memory_bytes: int
    processes: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class AppContainerEnforcer:
    """Runs a command with the low rights of a Windows app: no network and no files unless granted."""

    name = NAME

    def probe(self) -> None:
        """Runs a child in a container that tries to list the user's own directory."""
        if sys.platform != "win32":
            raise EnforcerUnavailable(NAME, "works on Windows only", hint="use get_enforcer() for this system's own")
        from warmcell.enforcers.appcontainer_launcher import probe_host

        problem = probe_host(
            container_plan("C:\\Windows\\System32\\cmd.exe", ["/c", "dir", "%USERPROFILE%"], SandboxPolicy())
        )
        if problem:
            raise EnforcerUnavailable(NAME, problem, hint="Windows 10 or newer is needed; WasmBackend works everywhere")

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand:
        plan = container_plan(program, args, policy)
        environment = {"SystemRoot": r"C:\Windows", CHILD_MARK: "1"}
        return WrappedCommand(own_interpreter(), ("-I", str(LAUNCHER), plan.to_json()), env=environment)

    def configure_command(self, command: WrappedCommand, policy: SandboxPolicy) -> dict[str, object]:
        """For `subprocess`. The launcher creates and removes profile and grants, since only it sees the guest exit."""
        no_window = 0x08000000
        return {"env": dict(command.env), "close_fds": True, "creationflags": no_window}


def container_plan(program: str, args: Sequence[str], policy: SandboxPolicy) -> ContainerPlan:
    """The plan for a policy and a command. Pure."""
    check_supported(NAME, policy)
    check_program(program)
    command = command_line([program, *(check_text("args", item) for item in args)])
    limits = effective_limits(policy)
    return ContainerPlan(
        profile=profile_name(policy, command),
        capabilities=(INTERNET_CLIENT, PRIVATE_NETWORK) if policy.allow_network else (),
        grants=grants(policy.allowed_paths),
        command_line=command,
        environment=environment_block(policy.env),
        allow_children=policy.allow_process_spawn,
        memory_bytes=limits.memory_mb * 1024 * 1024,
        processes=limits.processes if policy.allow_process_spawn else 1,
    )


def check_program(program: str) -> None:
    """Requires an absolute path to a real executable. cmd.exe, which runs batch files, parses arguments otherwise."""
    drive, tail = ntpath.splitdrive(check_text("program", program))
    if not re.fullmatch("[A-Za-z]:", drive) or not tail.startswith("\\") or _FORBIDDEN_IN_PATH.search(tail):
        raise InvalidRequest(f"must be an absolute path with a drive, not {program!r}", field="program")
    if tail.lower().rstrip(". ").endswith((".bat", ".cmd")):
        raise InvalidRequest("must not be a batch file", field="program", hint="run cmd.exe /c with it")


def profile_name(policy: SandboxPolicy, command: str) -> str:
    """A name for this policy and command. Equal names share an identity and grants. Windows allows 64 characters."""
    digest = hashlib.sha256(json.dumps([policy.to_json(), command]).encode()).hexdigest()
    return f"warmcell.{digest[:40]}"


def grants(paths: Sequence[AllowedPath]) -> tuple[Grant, ...]:
    """The grants, parents first. Entries are inherited, so a narrower one inside a wider one has no effect."""
    pair = find_narrowing((allowed.path, allowed.mode is AccessMode.READ_WRITE) for allowed in paths)
    if pair is not None:
        raise PolicyViolation(
            f"an AppContainer cannot keep {pair[1]!r} read-only inside {pair[0]!r}",
            hint="allow only the parts that may be written",
        )
    found = [_grant(allowed) for allowed in paths]
    return tuple(sorted(found, key=lambda grant: (grant.path.count("\\"), grant.path)))


def _grant(allowed: AllowedPath) -> Grant:
    if allowed.target != allowed.path:
        raise PolicyViolation(
            f"an AppContainer cannot show {allowed.path!r} at {allowed.target!r}", hint="allow it at its own place"
        )
    mask = READ_WRITE_MASK if allowed.mode is AccessMode.READ_WRITE else READ_ONLY_MASK
    return Grant(windows_path(allowed.path), mask)


def windows_path(path: str) -> str:
    """`/C:/data` as `C:\\data`. Policies use slashes on all systems."""
    match = _DRIVE_PATH.fullmatch(path)
    tail = (match[2] or "/").replace("/", "\\") if match else ""
    if match is None or _FORBIDDEN_IN_PATH.search(tail):
        raise PolicyViolation(f"{path!r} is not a Windows path", hint="write it as /C:/directory/file")
    return f"{match[1].upper()}:{tail}"


def command_line(words: Sequence[str]) -> str:
    """A command line that CommandLineToArgvW and the C runtime split into exactly these words."""
    return " ".join([f'"{words[0]}"', *(quote_argument(word) for word in words[1:])])


def quote_argument(word: str) -> str:
    """Backslashes are special only before a quotation mark, where each is doubled."""
    if word and not re.search(r'[\s"]', word):
        return word
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', word)
    return '"' + re.sub(r"(\\+)\Z", r"\1\1", escaped) + '"'


def environment_block(env: Mapping[str, str]) -> str:
    """`key=value` entries separated by NUL, sorted as Windows requires. Names that differ only in case are one name."""
    merged = {"SystemRoot": r"C:\Windows", "PATH": r"C:\Windows\System32", **env}
    folded: dict[str, str] = {}
    for key, value in merged.items():
        folded = {name: kept for name, kept in folded.items() if name.upper() != key.upper()}
        folded[key] = value
    return "".join(f"{key}={folded[key]}\0" for key in sorted(folded, key=str.upper)) + "\0"
