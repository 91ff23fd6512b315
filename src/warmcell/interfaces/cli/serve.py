"""`warmcell serve` and `warmcell token`."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable, InvalidRequest, PolicyViolation
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.render import print_json

if TYPE_CHECKING:
    from argparse import Namespace

    from warmcell.interfaces.serve.settings import Settings

_PACKAGES = ("starlette", "uvicorn", "pydantic")


def serve(arguments: Namespace) -> int:
    """Serves until it is told to end. The address is on stdout as soon as clients can connect."""
    _check_installed()
    import logging

    from warmcell.interfaces.serve.server import serve as serve_http
    from warmcell.interfaces.serve.settings import MOST_WORKERS, Settings
    from warmcell.interfaces.serve.sign_in import new_code

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    settings = Settings(
        host=arguments.host,
        port=_port(arguments.port),
        token=arguments.token or os.environ.get("WARMCELL_TOKEN") or None,
        tokens=arguments.tokens,
        policy=arguments.policy,
        code=new_code() if arguments.open else None,
        python=arguments.python,
        max_timeout=options.seconds("--max-timeout", arguments.max_timeout),
        workers=options.whole_number("--workers", arguments.workers, MOST_WORKERS) or 1,
        spares=options.whole_number("--spares", arguments.spares, 1 << 12, 0),
        max_body=(options.whole_number("--max-body", arguments.max_body, 1 << 10) or 1) << 20,
    )
    try:
        serve_http(settings, lambda url: _tell(settings, url))
    except (InvalidRequest, PolicyViolation) as error:
        raise UsageError(error.message, error.hint) from None
    return OK


def _tell(settings: Settings, url: str) -> None:
    print(url, flush=True)
    if settings.code is None:
        return
    import webbrowser

    from warmcell.interfaces.serve.sign_in import address_to_open

    # It may wait for the browser, and the server must not.
    address = address_to_open(settings, url)
    threading.Thread(target=lambda: webbrowser.open(address), daemon=True).start()


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = next((name for name in _PACKAGES if find_spec(name) is None), None)
    if missing is not None:
        raise BackendUnavailable(
            f"the server needs the package {missing!r}, which is not installed", hint="pip install 'warmcell[serve]'"
        )


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:9]) > 65535:
        raise UsageError(f"--port: {text[:40]!r} is no port", "a number up to 65535; 0 takes a free one")
    return int(text)


def token(arguments: Namespace) -> int:
    """Makes, lists and revokes tokens. A new one is printed once; the file keeps its hash."""
    from warmcell.interfaces.serve import tokens

    path = arguments.tokens or tokens.default_file()
    try:
        if arguments.action == "new":
            return _new(arguments, path)
        if arguments.action == "revoke":
            gone = tokens.remove_token(path, _name(arguments))
            if arguments.json:
                print_json({"revoked": gone.id})
            return OK
        return _list(arguments, tokens.read_tokens(path) if os.path.exists(path) else ())
    except InvalidRequest as error:
        raise UsageError(error.message, error.hint) from None


_QUOTAS = ("runs", "sandboxes", "disk_mb", "lifetime", "rate", "connections")


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
        made = time.strftime("%Y-%m-%d", time.gmtime(tenant.created))
        print(f"{tenant.id}  {made}  {','.join(tenant.scopes):20}  {tenant.name}")
    return OK


def _name(arguments: Namespace) -> str:
    if not arguments.name:
        raise UsageError(f"whose token? `warmcell token {arguments.action} NAME`")
    return options.text(arguments.name)
