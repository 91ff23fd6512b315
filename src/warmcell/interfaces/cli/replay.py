"""`warmcell replay`: runs what was recorded again, and says what differs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.lines import one_line
from warmcell.core.types import ExecResult
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.render import print_json, to_plain
from warmcell.interfaces.recording import Recording, current_versions, read

if TYPE_CHECKING:
    from argparse import Namespace

DIFFERS = 1
_SHOWN_LINES = 20
#: What a program did. How long it took and what it used differ each time.
_COMPARED = (
    "status exit_code signal stdout stderr stdout_base64 stderr_base64 stdout_truncated stderr_truncated files denials"
).split()


def replay(arguments: Namespace) -> int:
    """0 where every run came out as recorded, 1 where one did not."""
    status = OK
    try:
        for number, recording in enumerate(read(arguments.file), start=1):
            _check_trust(recording, number, arguments.trust)
            differences = compare(recording, _run(recording))
            if differences["outcome"]:
                status = DIFFERS
            _tell(number, recording, differences, arguments.json)
    except InvalidRequest as error:
        raise UsageError(error.message, error.hint) from None
    return status


def compare(recording: Recording, now: Mapping[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """By name, what was recorded and what is: of the outcome, of what held, and of versions."""
    before = recording.outcome
    outcome = _differing({key: before.get(key) for key in _COMPARED}, {key: now.get(key) for key in _COMPARED})
    codes = [(plain.get("error") or {}).get("code") for plain in (before, now)]
    if codes[0] != codes[1]:
        outcome["error"] = codes
    versions = current_versions(recording.backend, recording.request)
    return {
        "outcome": outcome,
        "enforced": _differing(before.get("enforced") or {}, now.get("enforced") or {}),
        "versions": _differing(recording.versions or {}, versions),
    }


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = [*before, *(name for name in now if name not in before)]
    return {name: [before.get(name), now.get(name)] for name in names if before.get(name) != now.get(name)}


def _check_trust(recording: Recording, number: int, is_trusted: bool) -> None:
    """A file from somebody else must not open this host by what it says of its policy."""
    policy = recording.policy
    opens = policy is not None and (policy.allowed_paths or policy.allow_network or policy.network_rules)
    if (opens or recording.enforcer is None) and not is_trusted:
        what = "ran without a cage" if recording.enforcer is None else "was allowed host paths or a network"
        raise UsageError(f"run {number} {what}", "look at the file, then replay it with --trust")


def _run(recording: Recording) -> dict[str, Any]:
    async def once() -> ExecResult:
        backend = _backend(recording)
        try:
            result: ExecResult = await backend.execute(recording.request)
            return result
        finally:
            await backend.aclose()

    try:
        return to_plain(asyncio.run(once()))
    except SandboxError as error:
        return to_plain(error)


def _backend(recording: Recording) -> Any:
    if recording.backend == "process":
        from warmcell.backends.process.backend import ProcessBackend

        return ProcessBackend(enforcer=recording.enforcer, policy=recording.policy)
    from warmcell.backends.registry import get_backend

    return get_backend(recording.backend)


def _tell(number: int, recording: Recording, differences: dict[str, dict[str, list[Any]]], as_json: bool) -> None:
    is_same = not differences["outcome"]
    if as_json:
        print_json({"run": number, "same": is_same, "differences": differences})
        return
    print(f"run {number} ({recording.request.language}): {'same' if is_same else 'differs'}")
    for kind, found in differences.items():
        for name, (before, now) in found.items():
            print("\n".join(_words(f"{kind} {name}", before, now)))
    sys.stdout.flush()


def _words(name: str, before: Any, now: Any) -> list[str]:
    if isinstance(before, str) and isinstance(now, str) and "\n" in before + now:
        lines = list(unified_diff(before.splitlines(), now.splitlines(), "recorded", "now", lineterm=""))
        more = [f"    ... {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
        return [f"  {name}:", *(f"    {one_line(line, 200)}" for line in lines[:_SHOWN_LINES]), *more]
    return [f"  {name}: was {one_line(repr(before), 200)}, is {one_line(repr(now), 200)}"]
