"""Seatbelt (macOS): turns the policy into a deny-default profile for `sandbox-exec`.

Seatbelt only filters: paths keep their places, there is no private /tmp, and the network is either "this machine, by
port" or "everything". Policies that it cannot express are refused.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from warmcell.core.errors import EnforcerUnavailable, PolicyViolation
from warmcell.core.records import dataclass
from warmcell.enforcers.bubblewrap import check_command
from warmcell.enforcers.contract import WrappedCommand
from warmcell.enforcers.mounts import resolve_mounts
from warmcell.lifetime.temporary_directory import temporary_directory
from warmcell.policy.enforcer_support import check_supported
from warmcell.policy.model import NetworkRule, SandboxPolicy

NAME = "seatbelt"
SANDBOX_EXEC = "/usr/bin/sandbox-exec"
DEFAULT_ENV = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}

_SYSTEM_TREES = tuple(
    """
    /bin /usr/bin /usr/lib /usr/libexec /usr/share /System/Library /System/Volumes/Preboot/Cryptexes/OS
    /System/Cryptexes/OS /Library/Developer/CommandLineTools /private/etc/ssl /private/var/db/dyld
    /private/var/db/timezone
    """.split()
)
_SYSTEM_FILES = tuple(
    """
    / /private/etc/localtime /private/etc/protocols /private/etc/services /dev/random /dev/urandom
    """.split()
)
_WRITABLE_DEVICES = ("/dev/null", "/dev/zero")
_SERVICES = ("com.apple.system.opendirectoryd.libinfo", "com.apple.system.notification_center")
_RESOLVER_SERVICES = ("com.apple.dnssd.service", "com.apple.SystemConfiguration.configd", "com.apple.trustd.agent")
_RESOLVER_SOCKET = "/private/var/run/mDNSResponder"
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})


@dataclass(frozen=True, slots=True)
class ProfilePath:
    """A path without symbolic links, because Seatbelt compares real paths."""

    path: str
    writable: bool
    is_directory: bool


class SeatbeltEnforcer:
    """Runs a command under macOS's own sandbox."""

    name = NAME

    def probe(self) -> None:
        """Runs a child that tries to read a file, with a policy that denies it and one that allows it."""
        if sys.platform != "darwin":
            raise EnforcerUnavailable(NAME, "works on macOS only", hint="use get_enforcer() for this system's own")
        with temporary_directory("probe") as directory:
            canary = Path(directory, "canary")
            canary.write_text("canary")
            denied = self._reads(str(canary), SandboxPolicy())
            allowed = self._reads(str(canary), SandboxPolicy.from_json(_reading_policy(directory)))
        if denied or not allowed:
            raise EnforcerUnavailable(NAME, "sandbox-exec does not enforce its profile here", hint="use WasmBackend")

    def _reads(self, path: str, policy: SandboxPolicy) -> bool:
        command = self.wrap_command("/bin/cat", [os.path.realpath(path)], policy)
        try:
            done = subprocess.run(command.argv, capture_output=True, timeout=15, check=False, env=dict(command.env))
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnforcerUnavailable(NAME, f"the probe did not run: {error}", hint="use WasmBackend") from None
        return b"canary" in done.stdout

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand:
        command = check_command(program, args)
        check_supported(NAME, policy)
        refuse_moved_paths(policy)
        mounts = resolve_mounts(policy.allowed_paths, (), ())
        paths = [ProfilePath(mount.source, mount.writable, os.path.isdir(mount.source)) for mount in mounts]
        paths.sort(key=lambda path: (path.path.count("/"), path.path))
        profile = seatbelt_profile(policy, os.path.realpath(program), paths)
        return WrappedCommand(SANDBOX_EXEC, ("-p", profile, "--", *command), env={**DEFAULT_ENV, **policy.env})

    def configure_command(self, command: WrappedCommand, policy: SandboxPolicy) -> dict[str, object]:
        """For `subprocess`. sandbox-exec passes on its environment, so it must be the guest's."""
        return {"env": dict(command.env), "pass_fds": command.pass_fds, "close_fds": True, "start_new_session": True}


def _reading_policy(directory: str) -> str:
    from warmcell.policy.builder import SandboxPolicyBuilder

    return SandboxPolicyBuilder().allow_read(os.path.realpath(directory)).build().to_json()


def refuse_moved_paths(policy: SandboxPolicy) -> None:
    for allowed in policy.allowed_paths:
        if allowed.target != allowed.path:
            raise PolicyViolation(
                f"Seatbelt cannot show {allowed.path!r} at {allowed.target!r}", hint="allow it at its own place"
            )


def quote(text: str) -> str:
    """A string literal of the profile language. Refuses control characters."""
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise PolicyViolation(f"{text!r} contains a control character, which a Seatbelt profile cannot contain")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def seatbelt_profile(policy: SandboxPolicy, program: str, paths: Sequence[ProfilePath]) -> str:
    """The whole profile. The last matching rule decides, so `paths` must be sorted parents first. Pure."""
    lines = ["(version 1)", "(deny default)"]
    lines += _process_rules(policy, program)
    lines += _system_rules(program)
    lines += [rule for path in paths for rule in _path_rules(path)]
    lines += _network_rules(policy)
    return "\n".join(lines) + "\n"


def _process_rules(policy: SandboxPolicy, program: str) -> Iterator[str]:
    if policy.allow_process_spawn:
        yield "(allow process-fork)"
        yield "(allow process-exec)"
        whom = "same-sandbox"
    else:
        yield f"(allow process-exec (literal {quote(program)}))"
        whom = "self"
    yield f"(allow signal (target {whom}))"
    yield f"(allow process-info* (target {whom}))"
    yield "(allow sysctl-read)"
    yield from (f"(allow mach-lookup (global-name {quote(service)}))" for service in _SERVICES)


def _system_rules(program: str) -> Iterator[str]:
    yield from (f"(allow file-read* (subpath {quote(tree)}))" for tree in _SYSTEM_TREES)
    yield from (f"(allow file-read* (literal {quote(file)}))" for file in (*_SYSTEM_FILES, program))
    for device in _WRITABLE_DEVICES:
        yield f"(allow file-read* file-write-data file-ioctl (literal {quote(device)}))"
    yield from (f"(allow file-read-metadata (literal {quote(parent)}))" for parent in parents(program))


def _path_rules(path: ProfilePath) -> Iterator[str]:
    """The rules for one path. A read-only one also denies writing, because it may be in a writable directory."""
    where = f"({'subpath' if path.is_directory else 'literal'} {quote(path.path)})"
    yield from (f"(allow file-read-metadata (literal {quote(parent)}))" for parent in parents(path.path))
    yield f"(allow file-read* {where})"
    yield f"({'allow' if path.writable else 'deny'} file-write* {where})"
    if path.writable and path.is_directory:
        # Moving the directory would move the narrower paths in it away from their rules.
        yield f"(deny file-write-unlink (literal {quote(path.path)}))"


def parents(path: str) -> list[str]:
    """Every directory above `path`, which a program must be able to look up."""
    parts = path.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


def _network_rules(policy: SandboxPolicy) -> Iterator[str]:
    if policy.allow_network:
        # By address only: without the filter the rule would also open every unix socket of the host.
        yield '(allow network-outbound (remote ip "*:*"))'
        yield '(allow network-inbound (local ip "*:*"))'
        yield '(allow network-bind (local ip "*:*"))'
        yield f"(allow network-outbound (literal {quote(_RESOLVER_SOCKET)}))"
        yield from (f"(allow mach-lookup (global-name {quote(service)}))" for service in _RESOLVER_SERVICES)
    for rule in policy.network_rules:
        yield from _network_rule(rule)


def _network_rule(rule: NetworkRule) -> Iterator[str]:
    if rule.domain.lower() not in _THIS_MACHINE or rule.methods is not None or rule.path_prefixes is not None:
        raise EnforcerUnavailable(
            NAME,
            f"cannot enforce a rule for {rule.domain!r}: it filters ports of this machine, not names, methods or paths",
            hint="fetch through Sandbox.fetch with a FetchPolicy, or use allow_network()",
        )
    yield from (f'(allow network-outbound (remote ip "localhost:{port}"))' for port in rule.ports)
