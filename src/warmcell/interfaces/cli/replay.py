"""`warmcell replay` runs recorded programs again and reports differences, `warmcell audit` prints an audit file."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

from warmcell.backends.registry import get_backend
from warmcell.core.errors import SandboxError
from warmcell.core.lines import one_line
from warmcell.core.records import replace
from warmcell.core.types import EffectiveLimits, ExecResult
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.render import print_json, to_plain
from warmcell.interfaces.recording import Recording, current_versions, read
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits

if TYPE_CHECKING:
    from argparse import Namespace

DIFFERS = 1
_SHOWN_LINES = 20
#: Fields that are compared. Times and usage always differ.
_COMPARED = (
    "status exit_code signal stdout stderr stdout_base64 stderr_base64 stdout_truncated stderr_truncated files denials"
).split()

#: What a recording may ask for without --trust.
_TRUSTED_BACKENDS = ("process", "wasm")
_TRUSTED_ENFORCERS = ("auto", "native")


def replay(arguments: Namespace) -> int:
    """Return 0 if every run had the recorded outcome, else 1."""
    status = OK
    for number, recording in enumerate(read(arguments.file), start=1):
        _check_trust(recording, number, arguments.trust)
        differences = compare(recording, _run(recording))
        if differences["outcome"]:
            status = DIFFERS
        _report(number, recording, differences, arguments.json)
    return status


def compare(recording: Recording, now: Mapping[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """Recorded and present values that differ, by name: of the outcome, the enforced limits and the versions."""
    before = recording.outcome
    outcome = _find_differences({key: before.get(key) for key in _COMPARED}, {key: now.get(key) for key in _COMPARED})
    codes = [(plain.get("error") or {}).get("code") for plain in (before, now)]
    if codes[0] != codes[1]:
        outcome["error"] = codes
    versions = current_versions(recording.backend, recording.request)
    return {
        "outcome": outcome,
        "enforced": _find_differences(before.get("enforced") or {}, now.get("enforced") or {}),
        "versions": _find_differences(recording.versions or {}, versions),
    }


def _find_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = [*before, *(name for name in now if name not in before)]
    return {name: [before.get(name), now.get(name)] for name in names if before.get(name) != now.get(name)}


def _check_trust(recording: Recording, number: int, is_trusted: bool) -> None:
    """Refuse a recording that would weaken the default isolation: the file may come from another person."""
    reason = None if is_trusted else _weakening(recording)
    if reason is not None:
        raise UsageError(f"run {number} {reason}", "review the file, then replay it with --trust")


def _weakening(recording: Recording) -> str | None:
    """What the recording asks for beyond a default run, or None. An allow-list: new fields are refused."""
    if recording.backend not in _TRUSTED_BACKENDS:
        return f"uses the backend {recording.backend[:40]!r}"
    if recording.enforcer not in _TRUSTED_ENFORCERS:
        return f"uses the enforcer {str(recording.enforcer or 'none')[:40]!r}, which may isolate less"
    policy, request = recording.policy or SandboxPolicy(), recording.request
    if policy.allow_tracing:
        return "was allowed to trace processes"
    if replace(policy, env={}, limits=None, allow_process_spawn=False) != SandboxPolicy():
        return "was allowed host paths or a network"
    limits, default = effective_limits(policy, request.limits, request.memory_limit_mb), EffectiveLimits()
    for name in default.__slots__:
        ours, theirs = getattr(default, name), getattr(limits, name)
        if ours is not None and theirs > ours:
            return f"has larger limits than the default ({name}: {theirs})"
    return None


def _run(recording: Recording) -> dict[str, Any]:
    async def once() -> ExecResult:
        options = {"enforcer": recording.enforcer, "policy": recording.policy}
        backend = get_backend(recording.backend, **(options if recording.backend == "process" else {}))
        try:
            result: ExecResult = await backend.execute(recording.request)
            return result
        finally:
            await backend.aclose()

    try:
        return to_plain(asyncio.run(once()))
    except SandboxError as error:
        return to_plain(error)


def _report(number: int, recording: Recording, differences: dict[str, dict[str, list[Any]]], as_json: bool) -> None:
    is_same = not differences["outcome"]
    if as_json:
        print_json({"run": number, "same": is_same, "differences": differences})
        return
    print(f"run {number} ({recording.request.language}): {'same' if is_same else 'differs'}")
    for kind, found in differences.items():
        for name, (before, now) in found.items():
            print("\n".join(_describe(f"{kind} {name}", before, now)))
    sys.stdout.flush()


def _describe(name: str, before: Any, now: Any) -> list[str]:
    name = one_line(name, 200)
    if isinstance(before, str) and isinstance(now, str) and "\n" in before + now:
        lines = list(unified_diff(before.splitlines(), now.splitlines(), "recorded", "now", lineterm=""))
        more = [f"    ... {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
        return [f"  {name}:", *(f"    {one_line(line, 200)}" for line in lines[:_SHOWN_LINES]), *more]
    return [f"  {name}: was {one_line(repr(before), 200)}, is {one_line(repr(now), 200)}"]


def audit(arguments: argparse.Namespace) -> int:
    """Print one line per record, oldest first; '-' reads stdin."""
    from warmcell.observe.audit import in_words, read_audit

    try:
        file = open(0 if arguments.file == "-" else arguments.file, "rb", closefd=arguments.file != "-")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"cannot read {arguments.file!r}: {error.strerror}") from None
    with file:
        for record in read_audit(file):
            if arguments.json:
                print_json(record)
            else:
                print(in_words(record))
    return OK
