"""`warmcell serve` and `warmcell token`."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.command_table import OPTIONS
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.messages import say_warning
from warmcell.interfaces.cli.render import print_json, print_url

if TYPE_CHECKING:
    from argparse import Namespace

    from warmcell.interfaces.serve.settings import Settings

_PACKAGES = ("starlette", "uvicorn", "pydantic")
#: Options that the server takes as they are.
_SAME_SETTINGS = (
    "host tokens policy python images public_url tls_cert tls_key audit usage state plain_volumes ray "
    "metrics_by_tenant log_level log_format"
).split()
#: Options of both the HTTP server and the Docker API.
_SHARED_OPTIONS = frozenset("docker_socket policy images log_level log_format json".split())


def serve(arguments: Namespace) -> int:
    """Serve until SIGTERM or SIGINT. The URL is printed to stdout when clients can connect."""
    _refuse_other_options(arguments)
    _check_installed()
    with ExitStack() as stack:
        if arguments.ray is None:  # the cluster's nodes import what is installed there, and may outlive this server
            _use_package_copy(stack)
        return _serve_docker(arguments) if arguments.docker_socket else _serve_http(arguments)


def _refuse_other_options(arguments: Namespace) -> None:
    """Refuse options of the API that is not served: a token or an audit without effect would be believed."""
    is_docker = bool(arguments.docker_socket)
    for (option, *_), settings in OPTIONS["serve"]:
        name = option.removeprefix("--").replace("-", "_")
        is_given = getattr(arguments, name) not in (None, False, settings.get("default"))
        if is_given and name not in _SHARED_OPTIONS and name.startswith("docker_") != is_docker:
            problem = "does not work with" if is_docker else "needs"
            raise UsageError(f"{option} {problem} --docker-socket", "leave one of the two out" if is_docker else None)


def _use_package_copy(stack: ExitStack) -> None:
    """Use a private copy of the package. Call this first: modules imported later keep paths of the package."""
    from warmcell.lifetime.package_copy import use_package_copy

    try:
        stack.enter_context(use_package_copy())
    except OSError as error:
        hint = "do not replace it while this server runs, or set TMPDIR to a directory with room"
        say_warning(f"cannot make a private copy of the package: {error}", hint)


def _serve_http(arguments: Namespace) -> int:
    from warmcell.interfaces.serve.server import configure_logging
    from warmcell.interfaces.serve.server import serve as serve_http
    from warmcell.interfaces.serve.settings import MAX_WORKERS, Settings
    from warmcell.interfaces.serve.sign_in import new_code
    from warmcell.interfaces.serve.state_encryption import read_key

    configure_logging(arguments.log_level, arguments.log_format)
    if arguments.state_key is not None and arguments.state is None:
        raise UsageError("--state-key needs --state", "name the directory to encrypt with --state DIR")
    if arguments.token == "":
        raise UsageError("--token is empty", "give it a value; without --token, every local user may use the server")
    state_key = None if arguments.state is None else read_key(arguments.state_key)
    if arguments.plain_volumes and state_key is None:
        raise UsageError("--plain-volumes needs --state and --state-key", "without a key, volumes need no option")
    settings = Settings(
        **{name: getattr(arguments, name) for name in _SAME_SETTINGS},
        port=options.port(arguments.port),
        token=arguments.token or os.environ.get("WARMCELL_TOKEN") or None,
        code=new_code() if arguments.open else None,
        max_timeout=options.seconds("--max-timeout", arguments.max_timeout),
        workers=options.whole_number("--workers", arguments.workers, MAX_WORKERS) or 1,
        trusted_proxies=",".join(arguments.trusted_proxy),
        state_key=state_key,
        sandboxes=options.whole_number("--sandboxes", arguments.sandboxes, 1 << 16) or 1,
        spares=options.whole_number("--spares", arguments.spares, 1 << 12, 0),
        max_body=(options.whole_number("--max-body", arguments.max_body, 1 << 10) or 1) << 20,
    )
    serve_http(settings, lambda url: _announce(settings, url, arguments.json))
    return OK


def _serve_docker(arguments: Namespace) -> int:
    """Serve Docker's API alone. DOCKER_HOST is printed to stdout when clients can connect."""
    from warmcell.interfaces.docker.engine import DockerSettings
    from warmcell.interfaces.docker.server import serve as serve_docker
    from warmcell.interfaces.serve.server import configure_logging, raise_descriptor_limit
    from warmcell.policy.model import SandboxPolicy

    configure_logging(arguments.log_level, arguments.log_format)
    raise_descriptor_limit()
    binds = [options.existing("--docker-binds", path) for path in arguments.docker_binds]
    ceiling = options.policy([], binds, arguments.docker_network, arguments.policy)
    settings = DockerSettings(
        socket=arguments.docker_socket,
        ceiling=ceiling or SandboxPolicy(),
        containers=options.whole_number("--docker-containers", arguments.docker_containers, 1 << 12) or 1,
        ignores_capabilities=arguments.docker_ignore_capabilities,
        joins_exec_output=arguments.docker_join_output,
        store=arguments.images,
    )
    serve_docker(settings, lambda url: print_url(url, arguments.json))
    return OK


def _announce(settings: Settings, url: str, as_json: bool) -> None:
    print_url(url, as_json)
    if settings.code is None:
        return
    import webbrowser

    from warmcell.interfaces.serve.sign_in import address_to_open

    # Opening a browser may block, so it has a thread of its own.
    address = address_to_open(settings, url)
    threading.Thread(target=lambda: webbrowser.open(address), daemon=True).start()


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = next((name for name in _PACKAGES if find_spec(name) is None), None)
    if missing is not None:
        raise BackendUnavailable(
            f"the server needs the package {missing!r}, which is not installed", hint="pip install 'warmcell[serve]'"
        )


def token(arguments: Namespace) -> int:
    """Create, list and revoke tokens. A new token is printed once; the file keeps its hash."""
    from warmcell.interfaces.serve import tokens

    path = arguments.tokens or tokens.default_file()
    if arguments.action == "new":
        return _new(arguments, path)
    if arguments.action == "revoke":
        revoked = tokens.remove_token(path, _name(arguments))
        if arguments.json:
            print_json({"revoked": revoked.id})
        return OK
    return _list(arguments, tokens.read_tokens(path) if os.path.exists(path) else ())


_QUOTAS = ("runs", "sandboxes", "disk_mb", "lifetime", "rate", "connections", "gpu_runs", "templates")


def _new(arguments: Namespace, path: str) -> int:
    from warmcell.interfaces.serve.tokens import add_token

    quotas: dict[str, Any] = {name: getattr(arguments, name) for name in _QUOTAS}
    chosen: dict[str, Any] = {
        name: options.whole_number(f"--{name.replace('_', '-')}", text, 1 << 24)
        for name, text in quotas.items()
        if text is not None
    }
    if arguments.scope:
        chosen["scopes"] = tuple(arguments.scope)
    secret, tenant = add_token(path, _name(arguments), **chosen)
    print_json({"id": tenant.id, "token": secret}) if arguments.json else print(secret)
    return OK


def _list(arguments: Namespace, tenants: Any) -> int:
    if arguments.json:
        names = ("id", "name", "created", "scopes", *_QUOTAS)
        print_json([{name: getattr(tenant, name) for name in names} for tenant in tenants])
        return OK
    for tenant in tenants:
        created = time.strftime("%Y-%m-%d", time.gmtime(tenant.created))
        quotas = " ".join(f"{name}={getattr(tenant, name)}" for name in _QUOTAS)
        print(f"{tenant.id}  {created}  {','.join(tenant.scopes):20}  {tenant.name}  {quotas}")
    return OK


def _name(arguments: Namespace) -> str:
    if not arguments.name:
        raise UsageError(f"a name is required: `warmcell token {arguments.action} NAME`")
    return options.text(arguments.name)
