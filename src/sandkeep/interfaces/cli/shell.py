"""`sandkeep sh`: a script of the WebAssembly toolbox over the current directory."""

from __future__ import annotations

import argparse
import os
from typing import Any

from sandkeep.core.errors import InvalidRequest, SandboxError
from sandkeep.core.types import ExecResult, check_text
from sandkeep.interfaces.cli import options
from sandkeep.interfaces.cli.exits import UsageError
from sandkeep.interfaces.cli.render import finish
from sandkeep.interfaces.cli.voice import Progress

GUEST_DIRECTORY = "/work"


def sh(arguments: argparse.Namespace) -> int:
    """Runs the script where the user stands; read-only unless `--write`."""
    settings = _settings(arguments)
    outcome: ExecResult | SandboxError
    try:
        with Progress("running"):
            outcome = _run(_script(arguments.script), settings, arguments.write)
    except SandboxError as error:
        outcome = error
    return finish(outcome, arguments.json)


def _script(text: str) -> str:
    try:
        return check_text("script", text)
    except InvalidRequest as error:
        raise UsageError(error.message, error.hint) from None


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "timeout": options.seconds("--timeout", arguments.timeout),
        "env": options.environment(arguments.env),
    }
    memory = options.whole_number("--memory", arguments.memory, 1 << 20)
    return settings | ({} if memory is None else {"memory_limit_mb": memory}) | _network(arguments.allow_domain)


def _network(domains: list[str]) -> dict[str, Any]:
    if not domains:
        return {}
    from sandkeep.net import FetchPolicy

    return {"fetch_policy": FetchPolicy(allowed_domains=tuple(domains))}


def _run(script: str, settings: dict[str, Any], is_writable: bool) -> ExecResult:
    from sandkeep.sandbox import MountPoint, Sandbox

    here = os.getcwd()
    if is_writable:
        with Sandbox(here, backend="wasm", **settings) as sandbox:
            return sandbox.sh(script)
    mount = MountPoint(here, GUEST_DIRECTORY, writable=False)
    with Sandbox(backend="wasm", mounts=(mount,), **settings) as sandbox:
        return sandbox.exec("sh", ("-c", script), cwd=GUEST_DIRECTORY)
