"""Option texts to values. Pure, apart from looking whether a path is there."""

from __future__ import annotations

import os

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.core.types import check_env, check_timeout
from warmcell.interfaces.cli.exits import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.policy.model import SandboxPolicy


def seconds(option: str, text: str) -> float:
    """`--timeout`: a positive, finite number of seconds."""
    try:
        return check_timeout(float(text), option)
    except ValueError:
        raise UsageError(f"{option}: {text[:40]!r} is not a number of seconds", f"for example {option} 30") from None
    except InvalidRequest as error:
        raise UsageError(error.message, f"for example {option} 30") from None


def whole_number(option: str, text: str | None, largest: int, smallest: int = 1) -> int | None:
    """`--memory`, `--max-output`: a whole number."""
    if text is None:
        return None
    if not _is_number(text, 12) or not smallest <= int(text) <= largest:
        raise UsageError(f"{option}: {text[:40]!r} is not a whole number from {smallest} to {largest}")
    return int(text)


def text(word: str) -> str:
    """What was typed, as UTF-8: under the C locale Python takes every other byte for an undecodable one.

    For words that are given to guests; those that name files stay as the file system has them.
    """
    if word.isascii():
        return word
    try:
        return os.fsencode(word).decode()
    except UnicodeError:  # what it is then is for who checks it to say
        return word


def environment(pairs: list[str]) -> dict[str, str]:
    """`--env K=V`, each given once."""
    env: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--env: {pair[:80]!r} has no value", "write it as --env NAME=VALUE")
        if key in env:
            raise UsageError(f"--env: {key!r} is given twice", "give it once")
        env[text(key)] = text(value)
    try:
        return dict(check_env(env, "--env"))
    except InvalidRequest as error:
        raise UsageError(error.message, error.hint) from None


def policy(reads: list[str], writes: list[str], domains: list[str], file: str | None = None) -> SandboxPolicy | None:
    """The file's policy, or the default one (None, where processes are allowed), with what was allowed added to it."""
    if not (file or reads or writes or domains):
        return None
    from warmcell.policy.builder import SandboxPolicyBuilder

    try:
        builder = SandboxPolicyBuilder(policy_file(file)) if file else SandboxPolicyBuilder().allow_process_spawn()
        for path in reads:
            builder = builder.allow_read(_existing("--allow-read", path))
        for path in writes:
            builder = builder.allow_read_write(_existing("--allow-write", path))
        for domain in domains:
            name, ports = domain_and_ports(domain)
            builder = builder.allow_domain(name, ports)
    except (InvalidRequest, PolicyViolation) as error:
        raise UsageError(error.message, error.hint) from None
    return builder.build()


def policy_file(path: str) -> SandboxPolicy:
    """`--policy`: the policy in a .toml or .json file."""
    from warmcell.policy.model import SandboxPolicy

    try:
        return SandboxPolicy.from_file(path)
    except (InvalidRequest, PolicyViolation) as error:
        raise UsageError(f"--policy: {error.message.removeprefix('policy: ')}", error.hint) from None


def _existing(option: str, path: str) -> str:
    if not os.path.lexists(path):
        raise UsageError(f"{option}: {path!r} does not exist", "create it first")
    return path


def domain_and_ports(text: str) -> tuple[str, tuple[int, ...]]:
    """`example.com`, `example.com:8443`, `[::1]:80`; a bare IPv6 address has no port."""
    name, _, port = text.rpartition(":")
    if name and _is_number(port, 5) and (":" not in name or name.startswith("[")):
        return name, (int(port),)
    return text, (80, 443)


def _is_number(text: str, most_digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= most_digits
