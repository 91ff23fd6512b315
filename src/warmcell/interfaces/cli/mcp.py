"""`warmcell mcp`: serves a sandbox to MCP clients, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.render import print_url
from warmcell.languages.registry import lookup_language
from warmcell.lifetime.descriptors import raise_limit

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from warmcell.sandbox.asynchronous import AsyncSandbox


def mcp(arguments: Namespace) -> int:
    """Check the options, then serve until the client disconnects (stdio) or a signal arrives."""
    for option, is_given in (("--work-dir", arguments.work_dir is not None), ("--changes", arguments.changes)):
        if arguments.http and is_given:
            raise UsageError(f"{option} and --http cannot be combined", "leave one of them out")
    if arguments.token == "":
        raise UsageError("--token is empty", "give it a value; without --token, every local user may use the server")
    if arguments.changes and arguments.work_dir is None:
        raise UsageError("--changes needs --work-dir", "name the directory to work in")
    try:
        from warmcell.interfaces.mcp import server, transports
        from warmcell.interfaces.mcp.clients import PrivateSandbox
        from warmcell.interfaces.serve.settings import is_loopback
    except ImportError as error:
        hint = "pip install 'warmcell[mcp]'"
        raise BackendUnavailable(f"the MCP server needs the package {error.name!r}", hint=hint) from None
    make = _make_factory(arguments)
    made = server.make_server(
        lambda _: PrivateSandbox(make()),
        _languages(arguments.language),
        is_http=arguments.http,
        is_stateful=not arguments.stateless,
    )
    if not arguments.http:
        asyncio.run(transports.serve_stdio(made))
        return OK
    token = arguments.token or os.environ.get("WARMCELL_TOKEN")
    if not is_loopback(arguments.host) and not token:
        raise UsageError(f"{arguments.host!r} is reachable from other machines", "pass --token, or use 127.0.0.1")
    app = transports.http_app(made, arguments.host, token, options.seconds("--idle-timeout", arguments.idle_timeout))
    raise_limit()  # each client has connections and a sandbox
    announce = partial(print_url, as_json=arguments.json)
    asyncio.run(transports.serve_http(app, arguments.host, options.port(arguments.port), announce))
    return OK


def _make_factory(arguments: Namespace) -> Callable[[], AsyncSandbox]:
    """Make the sandbox factory, and call it once, so that wrong options are reported before a client connects."""
    from warmcell.sandbox.asynchronous import AsyncSandbox

    policy = options.policy(
        arguments.allow_read, arguments.allow_write, arguments.allow_domain, arguments.policy, arguments.gpu
    )
    make = partial(
        AsyncSandbox,
        arguments.work_dir,
        backend=arguments.backend,
        policy=policy,
        image=arguments.image,
        user=arguments.user,
        timeout=options.seconds("--timeout", arguments.timeout),
        memory_limit_mb=options.whole_number("--memory", arguments.memory, 1 << 20),
        env=options.environment(arguments.env),
        changes="keep" if arguments.changes else None,
        **_python(arguments.python),
    )
    asyncio.run(make().destroy())
    return make


def _python(python: str | None) -> dict[str, Any]:
    """Check --python now, so that a broken one is reported here and not to a model."""
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
        row = lookup_language(name)
        if row is None:
            raise UsageError(f"--language: unknown language {name!r}", "see 'warmcell doctor'")
        found.append(row.name)
    return found or None
