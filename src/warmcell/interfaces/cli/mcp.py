"""`warmcell mcp`: the sandbox for MCP clients, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable, InvalidRequest, PolicyViolation
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.languages.registry import known_language

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from warmcell.sandbox.asynchronous import AsyncSandbox


def mcp(arguments: Namespace) -> int:
    """Checks everything, then serves until the client goes (stdio) or a signal comes."""
    if arguments.http and arguments.work_dir is not None:
        raise UsageError("--work-dir is for one client, and --http serves many", "leave one of them out")
    try:
        from warmcell.interfaces.mcp import server, transports
        from warmcell.interfaces.mcp.clients import OwnPlace
        from warmcell.interfaces.serve.settings import is_loopback
    except ImportError as error:
        hint = "pip install 'warmcell[mcp]'"
        raise BackendUnavailable(f"the MCP server needs the package {error.name!r}", hint=hint) from None
    make = _maker(arguments)
    made = server.make_server(
        lambda _: OwnPlace(make()),
        _languages(arguments.language),
        is_http=arguments.http,
        is_stateful=not arguments.stateless,
    )
    if not arguments.http:
        asyncio.run(transports.serve_stdio(made))
        return OK
    token = arguments.token or os.environ.get("WARMCELL_TOKEN")
    if not is_loopback(arguments.host) and not token:
        raise UsageError(f"{arguments.host!r} can be reached from other machines", "give --token, or stay on 127.0.0.1")
    app = transports.http_app(made, arguments.host, token, options.seconds("--idle-timeout", arguments.idle_timeout))
    asyncio.run(transports.serve_http(app, arguments.host, _port(arguments.port), _tell))
    return OK


def _maker(arguments: Namespace) -> Callable[[], AsyncSandbox]:
    """Made once and thrown away, so that what is wrong with the options is said before a client comes."""
    from warmcell.sandbox.asynchronous import AsyncSandbox

    policy = options.policy(arguments.allow_read, arguments.allow_write, arguments.allow_domain, arguments.policy)
    make = partial(
        AsyncSandbox,
        arguments.work_dir,
        backend=arguments.backend,
        policy=policy,
        timeout=options.seconds("--timeout", arguments.timeout),
        memory_limit_mb=options.whole_number("--memory", arguments.memory, 1 << 20),
        env=options.environment(arguments.env),
        **_python(arguments.python),
    )
    try:
        asyncio.run(make().destroy())
    except (InvalidRequest, PolicyViolation) as error:
        raise UsageError(error.message, error.hint) from None
    return make


def _python(python: str | None) -> dict[str, Any]:
    """Asked about itself now: a Python that does not work is better told here than to a model."""
    if python is None:
        return {}
    from warmcell.languages.config import ProcessConfig
    from warmcell.languages.python import find_interpreter
    from warmcell.workspace.mount_points import work_path_beside

    config = ProcessConfig(python_path=os.path.abspath(python) if os.sep in python else python)
    try:
        found = find_interpreter(config)
    except BackendUnavailable as error:
        raise UsageError(f"--python: {error.message}", error.hint) from None
    return {"config": config, "work_path": work_path_beside(found.runtime_paths)}


def _languages(names: list[str]) -> list[str] | None:
    found = []
    for name in names:
        row = known_language(name)
        if row is None:
            raise UsageError(f"--language: unknown language {name!r}", "see 'warmcell doctor'")
        found.append(row.name)
    return found or None


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise UsageError(f"--port: {text!r} is no port", "a number from 0 to 65535")
    return int(text)


def _tell(url: str) -> None:
    print(url, flush=True)
