"""`warmcell jupyter install`: installs a Jupyter kernel that runs in a cage."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.render import print_json

if TYPE_CHECKING:
    from argparse import Namespace


def jupyter(arguments: Namespace) -> int:
    """Install the kernelspec and print its directory."""
    try:
        from warmcell.interfaces.jupyter import kernelspec, provisioner  # noqa: F401
    except ImportError as error:
        hint = "pip install 'warmcell[jupyter]'"
        raise BackendUnavailable(f"kernels need the package {error.name!r}", hint=hint) from None
    if arguments.kernel and arguments.python:
        raise UsageError("--kernel and --python cannot be combined", "leave --python out")
    settings = _settings(arguments)
    resources = None
    if arguments.kernel:
        spec, resources = kernelspec.installed_spec(arguments.kernel)
    else:
        spec = kernelspec.python_spec(os.path.abspath(arguments.python or sys.executable))
    spec["display_name"] = arguments.display_name or spec["display_name"]
    spec["env"] = {**spec.get("env", {}), **options.environment(arguments.env)}
    made = kernelspec.with_provisioner(spec, settings)
    directory = kernelspec.install(made, arguments.name, resources, user=arguments.user, prefix=arguments.prefix)
    print_json({"status": "success", "path": directory}) if arguments.json else print(directory)
    return OK


def _settings(arguments: Namespace) -> dict[str, Any]:
    """The provisioner's settings, for `kernel.json`."""
    if arguments.beside_notebook and arguments.work_dir:
        raise UsageError("--beside-notebook and --work-dir cannot be combined", "leave one of them out")
    work_dir = os.path.abspath(arguments.work_dir) if arguments.work_dir else None
    if work_dir and not os.path.isdir(work_dir):
        raise UsageError(f"--work-dir: {arguments.work_dir!r} is not a directory", "create it first")
    reads, writes = (
        [os.path.abspath(path) for path in paths] for paths in (arguments.allow_read, arguments.allow_write)
    )
    policy = options.policy(reads, writes, arguments.allow_domain, arguments.policy, arguments.gpu)
    return {
        "policy": None if policy is None else json.loads(policy.to_json()),
        "memory_mb": options.whole_number("--memory", arguments.memory, 1 << 20),
        "work_dir": work_dir,
        "beside_notebook": True if arguments.beside_notebook else None,
    }
