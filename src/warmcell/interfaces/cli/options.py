"""Parses option values. Pure, apart from checking that paths exist."""

from __future__ import annotations

import os

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.core.types import check_env, check_timeout
from warmcell.interfaces.cli.exits import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.policy.model import SandboxPolicy


def seconds(option: str, text: str) -> float:
    """Parse `--timeout`: a positive, finite number of seconds."""
    try:
        return check_timeout(float(text), option)
    except ValueError:
        raise UsageError(f"{option}: {text[:40]!r} is not a number of seconds", f"for example {option} 30") from None
    except InvalidRequest as error:
        raise UsageError(error.message, f"for example {option} 30") from None


def whole_number(option: str, text: str | None, largest: int, smallest: int = 1) -> int | None:
    """Parse `--memory`, `--max-output`: a whole number."""
    if text is None:
        return None
    if not _is_number(text, 12) or not smallest <= int(text) <= largest:
        raise UsageError(f"{option}: {text[:40]!r} is not a whole number from {smallest} to {largest}")
    return int(text)


def port(text: str) -> int:
    if not _is_number(text, 5) or int(text) > 65535:
        raise UsageError(f"--port: {text[:40]!r} is not a port", "a number up to 65535; 0 takes a free one")
    return int(text)


def text(word: str) -> str:
    """Decode an argument as UTF-8: in the C locale Python decodes other bytes as surrogates.

    For words passed to guests. File names stay as the file system has them.
    """
    if word.isascii():
        return word
    try:
        return os.fsencode(word).decode()
    except UnicodeError:  # later checks refuse it
        return word


def environment(pairs: list[str], option: str = "--env") -> dict[str, str]:
    """Parse `--env K=V`, each given once."""
    env: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = text(pair).partition("=")
        if not equals or not key:
            raise UsageError(f"{option}: {pair[:80]!r} has no value", f"write it as {option} NAME=VALUE")
        if key in env:
            raise UsageError(f"{option}: {key!r} is given twice", "give it once")
        env[key] = value
    return dict(check_env(env, option))


def policy(
    reads: list[str], writes: list[str], domains: list[str], file: str | None = None, gpus: str | None = None
) -> SandboxPolicy | None:
    """The policy of the file or the default one, with the --allow options added; None if no option was given."""
    if not (file or reads or writes or domains or gpus is not None):
        return None
    from warmcell.policy.builder import SandboxPolicyBuilder

    builder = SandboxPolicyBuilder(policy_file(file)) if file else SandboxPolicyBuilder().allow_process_spawn()
    for path in reads:
        builder = builder.allow_read(existing("--allow-read", path))
    for path in writes:
        builder = builder.allow_read_write(existing("--allow-write", path))
    for domain in domains:
        builder = builder.allow_domain(*domain_and_ports(domain))
    if gpus is not None:
        builder = builder.allow_gpu(device_numbers(gpus))
    return builder.build()


def device_numbers(text: str) -> tuple[int, ...] | None:
    """Parse `--gpu=0,1`; `--gpu` and `--gpu=all` mean all devices (None)."""
    if text in ("", "all"):
        return None
    words = text.split(",")
    if not all(_is_number(word, 5) for word in words):
        raise UsageError(f"--gpu: {text[:40]!r} is not a list of device numbers", "for example --gpu=0,1, or --gpu")
    return tuple(map(int, words))


def policy_file(path: str) -> SandboxPolicy:
    """Read `--policy`, a .toml or .json file."""
    from warmcell.policy.model import SandboxPolicy

    try:
        return SandboxPolicy.from_file(path)
    except (InvalidRequest, PolicyViolation) as error:
        raise UsageError(f"--policy: {error.message.removeprefix('policy: ')}", error.hint) from None


def existing(option: str, path: str) -> str:
    if not os.path.lexists(path):
        raise UsageError(f"{option}: {path!r} does not exist", "create it first")
    return path


def domain_and_ports(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse `example.com`, `example.com:8443` or `[::1]:80`; a bare IPv6 address has no port."""
    name, _, port = text.rpartition(":")
    if name and _is_number(port, 5) and (":" not in name or name.startswith("[")):
        return name, (int(port),)
    return text, (80, 443)


def _is_number(text: str, most_digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= most_digits
